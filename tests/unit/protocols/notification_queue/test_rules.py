"""Rules of topics: the changes that match, and regular expressions in bounded time."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from s3notify_platform.kernel.clock import SYSTEM_CLOCK
from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.protocols.notification_queue import Event, Rule, TopicSettings, decode_events
from s3notify_platform.protocols.notification_queue.topic_rules import EVENT_NAMES
from tests.unit.protocols.notification_queue.helpers import ONE_SHARD


@given(pattern=st.text("a(|)*{2,}[^]\\?-.$&", max_size=20) | st.text(max_size=8))
def test_any_text_is_a_pattern_or_is_refused(pattern):
    """Otherwise a strange pattern would crash the process that checks it."""
    try:
        Rule(regex=pattern, suffix="x").check()
    except UsageError:
        return
    Rule(regex=pattern).takes("b", "a" * 20)


@pytest.mark.parametrize(
    "pattern", ["(a|a)*b", "(a*)*b", "(a+)+b", ".*.*.*.*.*.*.*x", "(a?){60}b", "((a{0,9}){0,9})*b"]
)
def test_no_pattern_takes_long_to_match(pattern):
    """Otherwise a pattern that is exponential in Python would block all writers."""
    began = SYSTEM_CLOCK.monotonic()
    assert not Rule(regex=pattern).takes("b", "a" * 1024)
    assert Rule(regex=pattern).takes("b", "a" * 50 + pattern[-1])
    assert SYSTEM_CLOCK.monotonic() - began < 20


def test_a_pattern_must_match_the_whole_key():
    """Otherwise a pattern would match a part of a key, or fail at a line break."""
    rule = Rule(regex="logs/.*é")
    assert rule.takes("b", "logs/a\nbé")
    assert not rule.takes("b", "logs/éx")
    assert not rule.takes("b", "x/logs/é")


@pytest.mark.parametrize(
    "pattern", ["a" * 1025, "a\n", "((a{99}){99}){99}", "(a", "a)", "*a", "(?=a)", r"(a)\1"]
)
def test_unusable_patterns_are_refused(pattern):
    """Otherwise a topic would get a pattern that no process can compile."""
    with pytest.raises(UsageError):
        Rule(regex=pattern).check()


def taken(queue, **event):
    return [topic.name for topic in queue.takers(queue.see_topics(), "b", Event(**event))]


def test_a_topic_receives_changes_that_match_a_rule(queue):
    """Otherwise a topic would receive changes outside its bucket or prefix, or changes that match only a part of a
    rule.
    """
    rules = (
        Rule(prefix="raw/", suffix=".csv", events=("ObjectCreated:*",)),
        Rule(regex=r"raw/\d{4}/.*", events=("ObjectRemoved:DeleteMarkerCreated", "ObjectCreated:Copy")),
        Rule(bucket="other"),
    )
    queue.topics.create("ruled", TopicSettings(capacity=3, shards=1, rules=rules))
    queue.topics.create(
        "narrow", TopicSettings(capacity=3, shards=1, bucket="b", prefix="raw/1", rules=rules[:2])
    )
    queue.topics.create("elsewhere", TopicSettings(capacity=3, shards=1, rules=rules[2:]))
    assert queue.topics.get("ruled").settings.rules == rules  # read from the store
    assert taken(queue, key="raw/a.csv") == ["ruled", "t"]
    assert taken(queue, key="raw/1.csv") == ["narrow", "ruled", "t"]
    assert taken(queue, key="raw/a.csv", op="delete") == ["t"]
    assert taken(queue, key="raw/1234/x", name="ObjectCreated:Copy") == ["narrow", "ruled", "t"]
    assert taken(queue, key="raw/1234/x") == ["t"]
    assert taken(queue, key="raw/x", op="delete", name="ObjectRemoved:DeleteMarkerCreated") == ["t"]
    assert taken(queue, key="new/1234/x", name="ObjectCreated:Copy") == ["t"]


def test_rules_match_metadata_and_tags(queue):
    """Otherwise a topic would receive changes whose metadata or tags are unknown or different."""
    rules = (Rule(prefix="raw/", metadata=(("team", "sales"),)), Rule(tags=(("class", "a"), ("of", "b"))))
    queue.topics.update("t", TopicSettings(capacity=3, shards=1, rules=rules))
    assert queue.topics.get("t").settings.rules == rules
    assert taken(queue, key="raw/1", metadata={"team": "sales", "at": "2"}) == ["t"]
    assert taken(queue, key="new/1", metadata={"team": "sales"}) == []
    assert taken(queue, key="raw/1", metadata={"team": "other"}) == []
    assert taken(queue, key="raw/1", tags={"team": "sales"}) == []
    assert taken(queue, key="raw/1") == taken(queue, key="raw/1", op="delete") == []
    assert taken(queue, key="new/1", tags={"class": "a", "of": "b", "more": ""}) == ["t"]
    assert taken(queue, key="new/1", tags={"class": "a"}) == []


def test_changed_rules_apply_to_later_changes(queue):
    """Otherwise an operator could not change what a topic receives."""
    queue.topics.update("t", TopicSettings(capacity=3, shards=1, rules=(Rule(suffix=".csv"),)))
    assert taken(queue, key="a.txt") == []
    queue.topics.update("t", ONE_SHARD)
    assert taken(queue, key="a.txt") == ["t"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("prefix=raw/", "rule 'prefix=raw/'"),
        ("[]", "rule"),
        ("{}", "give one or more of bucket, prefix, suffix, regex, events"),
        ('{"tag": {"a": "b"}}', "tag"),
        ('{"tags": ["a"]}', "tags"),
        ('{"tags": {"a": 1}}', "printable texts"),
        ('{"tags": {"a": {"b": "c"}}}', "printable texts"),
        ('{"metadata": {"Team": "sales"}}', "lower case"),
        ('{"metadata": {"x-amz-meta-team": "sales"}}', "without x-amz-meta-"),
        ('{"metadata": {' + ", ".join(f'"{n}": ""' for n in range(11)) + "}}", "10 metadata and tags"),
        ('{"prefix": 1}', "printable texts"),
        ('{"prefix": "\\ud800"}', "printable texts"),
        ('{"suffix": "' + "x" * 1025 + '"}', "1024 characters"),
        ('{"events": "ObjectCreated:*"}', "a list of names"),
        ('{"events": ["ObjectCreate:*"]}', "ObjectCreated:Put, ObjectCreated:Post"),
        ('{"events": ["*"]}', "not a reported change"),
        ('{"prefix": "a", "id": "' + "x" * 256 + '"}', "255 characters"),
        ('{"id": "mine"}', "give one or more of bucket, prefix"),
        ('{"events": ["ObjectCreated:*"' + ', "ObjectCreated:Put"' * 20 + "]}", "20 events"),
        ('{"regex": "("}', r"missing \)"),
        ("[" * 100_000, "rule"),
    ],
)
def test_wrong_rules_are_refused(text, why):
    """Otherwise a user would not learn what is wrong with a rule, or would get a traceback."""
    with pytest.raises(UsageError, match=why):
        Rule.loads(text)


def test_rules_accept_event_names_with_and_without_s3():
    """Otherwise a rule with event names like `s3:ObjectCreated:*`, as S3 writes them, would be refused."""
    rule = Rule.loads(
        '{"suffix": ".csv", "events": ["s3:ObjectCreated:*", "ObjectLifecycle:Expiration:Current"]}'
    )
    assert rule == Rule(suffix=".csv", events=("ObjectCreated:*", "ObjectLifecycle:Expiration:Current"))
    assert rule.takes_event("ObjectLifecycle:Expiration:Current", None, None)
    assert not rule.takes_event("ObjectCreatedLater", None, None)
    rule = Rule.loads('{"metadata": {"team": "sales", "at": "1"}, "tags": {"Class": "public"}}')
    assert rule == Rule(metadata=(("at", "1"), ("team", "sales")), tags=(("Class", "public"),))


def test_too_many_rules_are_refused(queue):
    """Otherwise a topic could get so many rules that each write becomes slow."""
    with pytest.raises(UsageError, match="101 rules: at most 100"):
        queue.topics.update("t", TopicSettings(capacity=3, shards=1, rules=(Rule(prefix="a"),) * 101))


@pytest.mark.parametrize(
    ("rule", "why"),
    [
        (Rule(events=("ObjectCreated:Kaboom",)), "'ObjectCreated:Kaboom' is not a reported change"),
        (Rule(events=("ObjectCreated",)), "is not a reported change"),
        (
            Rule(events=("ObjectCreated:*", "ObjectLifecycle:Transition:*")),
            "'ObjectLifecycle:Transition:\\*'",
        ),
        (Rule(events=("ObjectCreated:PutTagging",)), "is not a reported change"),
        (Rule(metadata=(("a", "1"), ("a", "2"))), "a name of its metadata or tags has two values"),
        (Rule(tags=(("a", "1"), ("a", "2"))), "two values"),
        (Rule(prefix="é" * 600), "1024 bytes"),
        (Rule(suffix="é" * 600), "1024 bytes"),
        (Rule(regex=r"[^\x00-\x{10FFFF}]"), "no key matches"),
        (Rule(regex="x{0}"), "no key matches"),
        (Rule(prefix="raw/", regex="logs/.*"), "no key that begins with 'raw/' matches 'logs/.\\*'"),
        (Rule(prefix="raw/", regex="(?i)rab/[0-9]+"), "no key that begins with"),
        (Rule(prefix="raw/a/b", regex="raw/a"), "no key that begins with"),
        (
            Rule(prefix="a" * 600, suffix="b" * 600),
            "a key has 1200 bytes or more, but may have only 1024 bytes",
        ),
        (Rule(prefix="é" * 500, suffix="é" * 24 + "b" * 100), "a key has 1100 bytes"),
        (
            Rule(suffix=".csv", regex=r".*\.json"),
            r"no key that ends with '.csv' matches '\.\*\\\\.json'",
        ),
        (Rule(suffix="x.json", regex=r"[a-z]+/\d+z\.json|.*y\.json$"), "no key that ends with 'x.json'"),
        (Rule(prefix="a/", suffix=".csv", regex=r"a/.*\.json|b/.*\.csv"), "begins with 'a/' and ends with"),
        (Rule(suffix=".csv", regex=r"(?:a|b)(?P<n>c)\.tsv\z"), "ends with '.csv'"),
        (Rule(regex="é" * 600), "no key matches"),
        (Rule(regex="a{1000}a{100}"), "no key matches"),
        (Rule(regex="é" * 400 + ".*" + "x" * 400), "no key matches"),
        (Rule(regex="raw/" + "é" * 300 + ".*", suffix="x" * 600), "no key that ends with"),
        (Rule(regex=".*" + "é" * 300, prefix="x" * 600), "no key that begins with"),
    ],
)
def test_rules_that_can_never_match_are_refused(queue, rule, why):
    """Otherwise a topic would receive nothing, and nobody would learn why."""
    with pytest.raises(UsageError, match=why):
        queue.topics.update("t", TopicSettings(capacity=3, shards=1, rules=(rule,)))


@pytest.mark.parametrize(
    ("topic", "rule", "why"),
    [
        ({"bucket": "b"}, Rule(bucket="other"), "bucket 'other' matches nothing"),
        ({"prefix": "raw/"}, Rule(prefix="new/"), "prefix 'new/' matches nothing"),
        ({"prefix": "raw/"}, Rule(regex="new/.*"), "no key that begins with 'raw/'"),
        ({"prefix": "a" * 600}, Rule(suffix="b" * 600), "a key has 1200 bytes"),
    ],
)
def test_rules_that_never_match_in_their_topic_are_refused(queue, topic, rule, why):
    """Otherwise a rule would be accepted although its bucket or prefix excludes all keys of the topic."""
    with pytest.raises(UsageError, match=why):
        queue.topics.create("narrow", TopicSettings(**topic, rules=(rule,)))


@given(
    key=st.text("ab/é.", min_size=1, max_size=8),
    cut=st.integers(0, 8),
    pattern=st.sampled_from([r"[ab/é.]*", r"(?i)A.*|B.*|[/é.].*", r".+", r"a?b?[^c]*"]),
)
def test_a_rule_that_matches_a_key_is_not_refused(key, cut, pattern):
    """Otherwise a rule that matches keys would be refused because its prefix seems to contradict its regular
    expression.
    """
    rule = Rule(prefix=key[:cut], regex=pattern)
    if rule.takes("b", key):
        rule.check()
        rule.check_within("b", key[: cut // 2])


PIECES = (
    (".*", "ab.c"), (r"\.", "."), ("a", "a"), ("b?", ""), ("é+", "éé"), (r"\d{2}", "12"), ("[a-c]", "c"),
    ("[]|)(]", "|"), (r"\|", "|"), ("(?:a|b.)", "b/"), ("(b|c)*", ""), ("x{0,2}", "xx"), (r"\pL", "N"),
    (r"\p{L}", "l"), (r"\x41", "A"), (r"\x{42}", "B"), (r"\103", "C"), ("^", ""), ("$", ""), ("(?i:d)", "D"),
    (r"\Q.+\E", ".+"), ("[[:digit:]\\]]", "]"), (r"\[", "["),
)  # fmt: skip
"""Parts of patterns, each with a text that it matches."""


@given(
    pieces=st.lists(st.sampled_from(PIECES), min_size=1, max_size=6),
    others=st.lists(st.sampled_from(["x", "", "(a|b)c", "[|]", r"\("]), max_size=2),
    cuts=st.tuples(st.integers(0, 12), st.integers(0, 12)),
)
def test_a_rule_with_a_suffix_that_matches_a_key_is_not_refused(pieces, others, cuts):
    """Otherwise a useful rule would be refused because its pattern was misunderstood."""
    pattern = "|".join(["".join(part for part, _ in pieces), *others])
    key = "".join(text for _, text in pieces)
    rule = Rule(prefix=key[: cuts[0]], suffix=key[cuts[1] :], regex=pattern)
    if key and rule.takes("b", key):  # an anchor inside of the pattern matches nothing
        rule.check()


@pytest.mark.parametrize(
    ("prefix", "suffix"),
    [("a" * 600, "a" * 600), ("x/" + "é" * 500, "é" * 500 + ".csv"), ("a" * 1024, "a"), ("a", "b" * 1023)],
    ids=["equal", "overlapping", "inside", "exact"],
)
def test_a_prefix_and_a_suffix_that_overlap_are_not_refused(prefix, suffix):
    """Otherwise a rule would be refused although a key of 1,024 bytes or fewer has both its prefix and its suffix."""
    Rule(prefix=prefix, suffix=suffix).check()


@pytest.mark.parametrize(
    "rule",
    [
        Rule(regex="é" * 512),
        Rule(regex="é" * 600 + "|a"),
        Rule(regex="a{600}.*" + "a" * 600),
        Rule(regex="é{300}.*", suffix="é" * 400),
        Rule(regex=".*" + "x" * 400, prefix="x" * 1024),
    ],
    ids=["exact", "alternative", "overlapping", "suffix", "inside"],
)
def test_an_expression_that_a_key_of_1024_bytes_matches_is_not_refused(rule):
    """Otherwise a rule would be refused although a key of 1,024 bytes matches it."""
    rule.check()


def test_a_topic_without_rules_may_receive_nothing(queue):
    """Otherwise a topic whose last rule is removed would receive all changes, or lose its entries."""
    queue.topics.update("t", TopicSettings(capacity=3, shards=1, rules=(Rule(suffix=".csv"),)))
    queue.push("t", Event(key="a.csv", bucket="b"))
    queue.topics.update("t", TopicSettings(capacity=3, shards=1, without_rules="none"))
    assert taken(queue, key="a.csv") == []
    assert [entry.event.key for entry in queue.entries("t", range(1000))] == ["a.csv"]
    queue.topics.update(
        "t", TopicSettings(capacity=3, shards=1, rules=(Rule(suffix=".csv"),), without_rules="none")
    )
    assert taken(queue, key="a.csv") == ["t"]
    assert taken(queue, key="a.txt") == []


@pytest.mark.parametrize("name", EVENT_NAMES)
def test_each_event_of_a_rule_is_decoded_as_a_change(name):
    """Otherwise a rule could name an event that no inlet reports as a change."""
    record = {"eventName": name, "s3": {"bucket": {"name": "b"}, "object": {"key": "k"}}}
    (event,) = decode_events(json.dumps({"Records": [record]})).events
    assert Rule(events=(name,)).takes_event(event.event_name, None, None)
