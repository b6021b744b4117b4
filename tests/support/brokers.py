"""RabbitMQ and Kafka on 127.0.0.1. The brokers can be killed and restarted, and end with their `with` block.

Install the brokers by `apt-get install rabbitmq-server maven`. Kafka comes from Maven Central, and Java runs it.
"""

import os
import shutil
import signal
import subprocess
import uuid
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from amqp import Connection
from confluent_kafka import Consumer, Producer

from s3notify_platform.kernel.clock import SYSTEM_CLOCK
from s3notify_platform.local.process import free_ports
from tests.support.endpoints import certificate
from tests.support.waiting import until

Received = tuple[str, bytes]
"""The id of an event, and the message."""

KAFKA = "3.9.1"
_RABBITMQ = "/usr/lib/rabbitmq/bin/rabbitmq-server"


class Broker:
    """One broker. The broker's data are in a folder."""

    user, password = "guest", "guest"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ca_file, _ = certificate(folder, "127.0.0.1")
        self.own_file = folder / "server-127.0.0.1.pem"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts the broker with its data. Returns when the broker answers."""
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                self.command(),
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        until(self.answers, seconds=120, why=lambda: (self.folder / "log").read_text()[-2000:])

    def kill(self) -> None:
        """Kills the broker and all its processes by SIGKILL."""
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None

    def restart(self) -> None:
        """Stops and starts the broker.

        The broker is not killed, because a killed RabbitMQ loses a queue that was made in the last seconds.
        """
        assert self.process is not None
        os.killpg(self.process.pid, signal.SIGTERM)
        self.process.wait(60)
        self.start()

    def environment(self) -> dict[str, str]:
        return dict(os.environ)

    @abstractmethod
    def command(self) -> list[str]: ...
    @abstractmethod
    def answers(self) -> bool: ...
    @abstractmethod
    def make(self, name: str) -> str:
        """Makes a durable queue or topic. Returns the URL of the queue or topic, for use as an endpoint."""

    @abstractmethod
    def secured(self, name: str) -> str:
        """Makes a durable queue or topic. The URL of the queue or topic uses TLS and has a login."""

    @abstractmethod
    def received(self, name: str) -> list[Received]:
        """Removes all messages from the queue or topic, and returns them."""


class RabbitMQ(Broker):
    """RabbitMQ with one node. Anybody on this machine may log in as guest."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.port, self.tls, self.epmd, self.peers = free_ports(4, SYSTEM_CLOCK)
        (folder / "rabbitmq.conf").write_text(
            f"listeners.tcp.1 = 127.0.0.1:{self.port}\nlisteners.ssl.1 = 127.0.0.1:{self.tls}\n"
            f"ssl_options.cacertfile = {self.ca_file}\n"
            f"ssl_options.certfile = {self.own_file}\nssl_options.keyfile = {self.own_file}\n"
        )
        (folder / "plugins").write_text("[].")

    def command(self) -> list[str]:
        assert Path(_RABBITMQ).exists(), "RabbitMQ is missing: apt-get install rabbitmq-server"
        return [_RABBITMQ]

    def environment(self) -> dict[str, str]:
        place = str(self.folder)
        return {
            **os.environ,
            "HOME": place,
            "RABBITMQ_NODENAME": f"s3notify{self.port}@localhost",
            "RABBITMQ_CONFIG_FILE": f"{place}/rabbitmq.conf",
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{place}/plugins",
            "RABBITMQ_MNESIA_BASE": f"{place}/mnesia",
            "RABBITMQ_LOG_BASE": place,
            "RABBITMQ_PID_FILE": f"{place}/pid",
            "RABBITMQ_DIST_PORT": str(self.peers),
            "ERL_EPMD_PORT": str(self.epmd),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
        }

    @contextmanager
    def channel(self) -> Iterator[Any]:
        with Connection(host=f"127.0.0.1:{self.port}", connect_timeout=5) as connection:
            yield connection.channel()

    def answers(self) -> bool:
        try:
            with self.channel():
                return True
        except OSError:
            return False

    def make(self, name: str, **arguments: object) -> str:
        with self.channel() as channel:
            channel.queue_declare(name, durable=True, auto_delete=False, arguments=arguments)
        return f"amqp://127.0.0.1:{self.port}?routing_key={name}"

    def secured(self, name: str) -> str:
        return f"amqps://127.0.0.1:{self.tls}?routing_key={name}"

    def received(self, name: str) -> list[Received]:
        found = []
        with self.channel() as channel:
            while (message := channel.basic_get(name, no_ack=True)) is not None:
                body = message.body if isinstance(message.body, bytes) else message.body.encode()
                found.append((message.properties["message_id"], body))
        return found


class Kafka(Broker):
    """Kafka with one node, which is controller and broker, without ZooKeeper."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.port, self.tls, self.controller = free_ports(3, SYSTEM_CLOCK)
        self.classes = _classpath(folder)
        self.settings = folder / "server.properties"
        self.settings.write_text(
            "process.roles=broker,controller\nnode.id=1\n"
            f"controller.quorum.voters=1@127.0.0.1:{self.controller}\n"
            f"listeners=PLAINTEXT://127.0.0.1:{self.port},SASL_SSL://127.0.0.1:{self.tls},"
            f"CONTROLLER://127.0.0.1:{self.controller}\n"
            "listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL_SSL:SASL_SSL\n"
            f"ssl.keystore.type=PEM\nssl.keystore.location={self.own_file}\n"
            "sasl.enabled.mechanisms=PLAIN\nlistener.name.sasl_ssl.plain.sasl.jaas.config="
            "org.apache.kafka.common.security.plain.PlainLoginModule required "
            f'user_{self.user}="{self.password}";\n'
            "controller.listener.names=CONTROLLER\n"
            f"log.dirs={folder}/data\n"
            "offsets.topic.replication.factor=1\ntransaction.state.log.replication.factor=1\n"
            "offsets.topic.num.partitions=1\ngroup.initial.rebalance.delay.ms=0\n"
            "auto.create.topics.enable=false\nlog.flush.interval.messages=1\n"
        )
        self._java("kafka.tools.StorageTool", "format", "-t", _uuid(), "-c", str(self.settings))

    def _java(self, main: str, *arguments: str) -> None:
        ran = subprocess.run(
            ["java", "-cp", self.classes, main, *arguments], capture_output=True, text=True, check=False
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr

    def command(self) -> list[str]:
        return ["java", "-Xmx512m", "-cp", self.classes, "kafka.Kafka", str(self.settings)]

    @property
    def _place(self) -> dict[str, str]:
        return {"bootstrap.servers": f"127.0.0.1:{self.port}", "log_level": "0"}

    def answers(self) -> bool:
        from confluent_kafka import KafkaException

        try:
            return bool(Producer(self._place).list_topics(timeout=2).brokers)
        except KafkaException:
            return False

    def make(self, name: str) -> str:
        from confluent_kafka.admin import AdminClient, NewTopic

        admin = AdminClient(self._place)
        (made,) = admin.create_topics([NewTopic(name, 2, 1)]).values()
        made.result(30)
        return f"kafka://127.0.0.1:{self.port}/{name}"

    def secured(self, name: str) -> str:
        return f"kafkas://127.0.0.1:{self.tls}/{name}"

    def received(self, name: str) -> list[Received]:
        from confluent_kafka import TopicPartition

        consumer = Consumer(self._place | {"group.id": name, "auto.offset.reset": "earliest"})
        found: list[Received] = []
        try:
            ends = {}
            for number in consumer.list_topics(name, timeout=30).topics[name].partitions:
                low, high = consumer.get_watermark_offsets(TopicPartition(name, number), timeout=30)
                if high > low:
                    ends[number] = high - 1
            consumer.assign([TopicPartition(name, number, 0) for number in ends])
            while ends:
                message = consumer.poll(30)
                assert message is not None
                assert message.error() is None, message.error()
                headers = {key: value.decode() for key, value in message.headers()}
                found.append((headers["s3notify-event-id"], message.value()))
                if message.offset() == ends.get(message.partition()):
                    del ends[message.partition()]
        finally:
            consumer.close()
        return found


def _uuid() -> str:
    from base64 import urlsafe_b64encode

    return urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")


def _classpath(folder: Path) -> str:
    """Kafka's jars, from Maven Central."""
    assert shutil.which("mvn"), "Maven is missing: apt-get install maven"
    pom = folder / "pom.xml"
    pom.write_text(
        "<project><modelVersion>4.0.0</modelVersion><groupId>t</groupId><artifactId>t</artifactId>"
        "<version>1</version><dependencies><dependency><groupId>org.apache.kafka</groupId>"
        f"<artifactId>kafka_2.13</artifactId><version>{KAFKA}</version></dependency></dependencies></project>"
    )
    jars = folder / "classpath"
    ran = subprocess.run(
        ["mvn", "-q", "-B", "-f", pom, "dependency:build-classpath", f"-Dmdep.outputFile={jars}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-3000:]
    return jars.read_text().strip()


@contextmanager
def running_broker(kind: type[Broker], folder: Path) -> Iterator[Broker]:
    """A running broker, whose data are in this folder. The folder must exist."""
    made = kind(folder)
    made.start()
    try:
        yield made
    finally:
        made.kill()
