"""Create the resource types of infra/image.py on the embedded AWS: an S3 object with the parts, and those of
Image Builder.
"""

from __future__ import annotations

import base64

from trainer.rehearsal.pulumi_resources import Made, Maker, Properties, Resources, makes, physical_name
from trainer.rehearsal.pulumi_shapes import tag_list


@makes("aws:s3/bucketObjectv2:BucketObjectv2")
def _object(cloud: Resources, name: str, properties: Properties) -> Made:
    bucket, key = properties.pop("bucket"), properties.pop("key")
    body, tags = base64.b64decode(properties.pop("contentBase64")), tag_list(properties.pop("tags", {}))
    cloud.client("s3").put_object(Bucket=bucket, Key=key, Body=body)
    if tags:
        cloud.client("s3").put_object_tagging(Bucket=bucket, Key=key, Tagging={"TagSet": tags})
    return key, {"bucket": bucket, "key": key}


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
