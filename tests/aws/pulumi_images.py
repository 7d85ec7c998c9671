"""Create the resource types of Image Builder on the embedded AWS, in place of a rehearsal's, which make
nothing.
"""

from __future__ import annotations

from trainer.rehearsal.pulumi_resources import Made, Maker, Properties, Resources, makes, physical_name


@makes("aws:imagebuilder/component:Component")
def _component(cloud: Resources, name: str, properties: Properties) -> Made:
    given = _versioned(name, properties)
    arn = cloud.send("imagebuilder", "CreateComponent", given)["componentBuildVersionArn"]
    return arn, {"arn": arn}


@makes("aws:imagebuilder/imageRecipe:ImageRecipe")
def _image_recipe(cloud: Resources, name: str, properties: Properties) -> Made:
    components = [dict(one) for one in properties.pop("components")]
    for component in components:  # AWS takes a list of values for each parameter, the provider one
        values = [
            {"name": one["name"], "value": [one["value"]]} for one in component.pop("parameters", None) or []
        ]
        component |= {"parameters": values} if values else {}
    given = {**_versioned(name, properties), "components": components}
    arn = cloud.send("imagebuilder", "CreateImageRecipe", given)["imageRecipeArn"]
    return arn, {"arn": arn}


def _named(kind: str) -> Maker:
    """Return the maker of a kind whose call takes the inputs unchanged, with a name, and answers with the
    ARN.
    """

    def make(cloud: Resources, name: str, properties: Properties) -> Made:
        given = {"name": physical_name(properties, name), **properties.rest()}
        arn = cloud.send("imagebuilder", f"Create{kind[0].upper()}{kind[1:]}", given)[f"{kind}Arn"]
        return arn, {"arn": arn}

    return make


for _kind in ("infrastructureConfiguration", "distributionConfiguration", "imagePipeline", "lifecyclePolicy"):
    makes(f"aws:imagebuilder/{_kind}:{_kind[0].upper()}{_kind[1:]}")(_named(_kind))


def _versioned(name: str, properties: Properties) -> dict[str, object]:
    """Take all inputs, with the version by AWS's name."""
    named = {"name": physical_name(properties, name), "semanticVersion": properties.pop("version")}
    return {**named, **properties.rest()}
