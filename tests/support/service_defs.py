"""A code location with services for tests. The environment says which source the code location has."""

import os
from threading import Event

import dagster as dg

from s3notify_platform.channels.delivery.delivery_worker import Delivery
from s3notify_platform.channels.delivery.egress import Egress
from s3notify_platform.orchestration.assets import build_slot_assets
from s3notify_platform.orchestration.checks import build_checks
from s3notify_platform.orchestration.component import S3NotifyComponent
from s3notify_platform.orchestration.managed_services import ManagedService, ManagedServices
from s3notify_platform.orchestration.upkeep import build_upkeep, queue_spec

LOOPBACK = Egress.of(["127.0.0.0/8"], allow_http=True)


class Scripted:
    """A service that does what a test has set."""

    name = "scripted"

    def __init__(self):
        self.stopped = False
        self.served = 0
        self.error = None
        self.until_stopped = False

    def run(self, stop: Event, progress):
        progress("begins")
        self.served += 1
        if self.error:
            raise self.error
        if self.until_stopped:
            stop.wait()
            self.stopped = True
        progress("ends")

    def counts(self):
        return {"served": self.served}


def definitions(digest="", **makers) -> dg.Definitions:
    """The definitions of a source with the service `deliver`, or with the services that `makers` make. `digest`: the
    digest of each service's settings.
    """
    component = S3NotifyComponent(
        name="orders",
        bucket=os.environ["TEST_BUCKET"],
        prefix="raw/",
        s3={
            "endpoint_url": os.environ["TEST_ENDPOINT_URL"],
            "access_key_id_env": "S3NOTIFY_TEST_KEY",
            "secret_access_key_env": "S3NOTIFY_TEST_SECRET",
        },
    )
    assets = component.assets()
    makers = makers or {"deliver": lambda io: Delivery(io.source.location.queue(), egress=LOOPBACK)}
    made = {name: ManagedService(build=make, digest=lambda _: digest) for name, make in makers.items()}
    checks, services = build_checks(assets), ManagedServices(assets=assets, by_name=made)
    return dg.Definitions(
        assets=[build_slot_assets(assets), queue_spec(assets)],
        asset_checks=[checks],
        sensors=[build_upkeep(assets, checks, "0 3 * * *", services)],
        resources={assets.io_key: assets.io},
    )


defs = definitions() if "TEST_BUCKET" in os.environ else None
