"""Parts of a recipe, and families of parts of which a recipe has one: `policy:`, `model:`, `loss:`."""

from collections.abc import Mapping
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, PrivateAttr, create_model
from pydantic_core import CoreSchema, core_schema


class Part(BaseModel):
    """Fields that belong together; unknown ones are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Kind(Part):
    """A part of which a recipe has one out of several, told apart by a field such as `kind`."""

    # What was given for other kinds. It decides nothing here, but a recipe that changes its kind and back is the same.
    _aside: dict[str, Any] = PrivateAttr(default_factory=dict)


class Family:
    """The kinds that a part of the recipe may be. Whoever needs a list of kinds, or of their fields, asks it.

    It goes with the union in an annotation: `policy: Annotated[AnyPolicy, POLICIES]`. A name means the same in
    every kind that has it, so a recipe may give fields of all kinds; those of other kinds are ignored.
    """

    def __init__(self, union: Any, default: str, tag: str = "kind") -> None:
        parts: tuple[type[Kind], ...] = get_args(union) or (union,)
        self.tag = tag
        self.kinds = {str(part.model_fields[tag].default): part for part in parts}
        self.names = tuple(self.kinds)
        fields: dict[str, Any] = {tag: (Literal[self.names], default)}
        for part in parts:
            own = {name: (field.annotation, field) for name, field in part.model_fields.items() if name != tag}
            for name in own.keys() & fields.keys():
                if _meaning(own[name][1]) != _meaning(fields[name][1]):
                    raise TypeError(f"{part.__name__}.{name} is not the {name} of another kind; rename it")
            fields |= {name: field for name, field in own.items() if name not in fields}
        self.told: type[BaseModel] = create_model(f"Any{parts[0].__mro__[1].__name__}", __base__=Part, **fields)
        self.defaults: dict[str, Any] = self.told().model_dump(mode="json")

    def looks_at(self, kind: str, field: str) -> bool:
        """Does this kind have this field? Nothing is known of a kind that does not exist."""
        return kind not in self.kinds or field in self.kinds[kind].model_fields

    def shape(self, given: Any) -> type[BaseModel]:
        """The kind that these fields are for; that of all kinds together where they name one that does not exist."""
        name = given.get(self.tag, self.defaults[self.tag]) if isinstance(given, Mapping) else None
        return self.kinds.get(str(name), self.told)

    def fields(self, part: Kind) -> dict[str, Any]:
        """Every field of every kind: the part's own values, what was given for other kinds, and defaults."""
        return self.defaults | part._aside | part.model_dump()

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        write = core_schema.plain_serializer_function_ser_schema(self._written, info_arg=True)
        return core_schema.no_info_wrap_validator_function(
            self._part, handler.generate_schema(self.told), serialization=write
        )

    def _written(self, part: Kind, info: core_schema.SerializationInfo) -> dict[str, Any]:
        """What a file holds: the part's own values, and what was given for other kinds; or only what was "given"."""
        chosen = {self.tag, *part.model_fields_set} if info.context == "given" else None
        return part._aside | part.model_dump(include=chosen)

    def _part(self, given: Any, check: core_schema.ValidatorFunctionWrapHandler) -> Kind:
        if isinstance(given, tuple(self.kinds.values())):
            return given
        checked = check(given)
        told = checked.model_dump()
        kind = self.kinds[told[self.tag]]
        own = {name: told.pop(name) for name in kind.model_fields}
        part = kind(**{name: value for name, value in own.items() if name in checked.model_fields_set})
        part._aside.update({name: value for name, value in told.items() if value != self.defaults[name]})
        return part


def _meaning(field: Any) -> tuple[Any, ...]:
    return field.annotation, field.default, field.metadata
