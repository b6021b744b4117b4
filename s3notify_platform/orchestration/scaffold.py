"""`dg scaffold defs s3notify_platform.S3NotifyComponent PATH --bucket … --prefix …` writes a source's YAML."""

import dagster as dg
from pydantic import BaseModel, Field


class SourceParams(BaseModel):
    """What the YAML is written from."""

    bucket: str = Field(description="Bucket to watch")
    prefix: str = Field(description="Only keys that begin with it, like raw/orders/")
    name: str | None = Field(
        default=None, description="Name of the source and of its asset; default: the folder's"
    )
    region: str | None = Field(default=None, description="Region; default: AWS_REGION, or the profile's")
    endpoint_url: str | None = Field(default=None, description="S3 endpoint; default: AWS")


class SourceScaffolder(dg.Scaffolder[SourceParams]):
    """Writes `defs.yaml` with the attributes that were given."""

    @classmethod
    def get_scaffold_params(cls) -> type[SourceParams]:
        """See `dg.Scaffolder`."""
        return SourceParams

    def scaffold(self, request: dg.ScaffoldRequest[SourceParams]) -> None:
        """See `dg.Scaffolder`."""
        given = request.params
        s3 = {"region": given.region, "endpoint_url": given.endpoint_url}
        attributes = {
            "name": given.name or request.target_path.name,
            "bucket": given.bucket,
            "prefix": given.prefix,
            "s3": {name: value for name, value in s3.items() if value},
        }
        dg.scaffold_component(request, {name: value for name, value in attributes.items() if value})
