"""`dg scaffold defs s3notify_platform.S3NotifyComponent PATH --bucket … --prefix …` writes a source's YAML."""

from dataclasses import replace
from typing import Any, Final

import dagster as dg
from pydantic import create_model

from s3notify_platform.kernel.setting import named
from s3notify_platform.orchestration.setting_fields import fields_of
from s3notify_platform.source.settings import SETTINGS, S3Settings

_ASKED: Final = ("bucket", "prefix", "name", "region", "endpoint_url")

SourceParams: Any = create_model(
    "SourceParams",
    __doc__="Values for the YAML; the default of `name` is the folder's name.",
    **fields_of(replace(SETTINGS[name], default="") if name == "name" else SETTINGS[name] for name in _ASKED),
)


class SourceScaffolder(dg.Scaffolder[Any]):
    """Writes `defs.yaml` with the given attributes."""

    @classmethod
    def get_scaffold_params(cls) -> Any:
        """See `dg.Scaffolder`."""
        return SourceParams

    def scaffold(self, request: dg.ScaffoldRequest[Any]) -> None:
        """See `dg.Scaffolder`."""
        given = {"name": request.target_path.name} | {
            name: value for name, value in request.params.model_dump().items() if value
        }
        s3 = {name: given.pop(name) for name in named(S3Settings) if name in given}
        dg.scaffold_component(request, given | ({"s3": s3} if s3 else {}))
