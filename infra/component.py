"""The base of the stack's components, which gives their resources its tags.

They don't come from the provider's `default_tags`: a provider of our own would read none of the stack's
`aws:` settings, and neither mocks nor rehearsals have one.
"""

from __future__ import annotations

from typing import Any

import pulumi

from infra.stack import Stack


class Component(pulumi.ComponentResource):
    """A component whose resources, at any depth, have the stack's tags."""

    child: pulumi.ResourceOptions  # of its resources

    def __init__(self, name: str, stack: Stack, opts: pulumi.ResourceOptions | None = None) -> None:
        def tagged(args: pulumi.ResourceTransformationArgs) -> pulumi.ResourceTransformationResult | None:
            if "tags" not in args.props:  # AWS can't tag its type
                return None
            own: Any = args.props["tags"] or {}
            return pulumi.ResourceTransformationResult({**args.props, "tags": stack.tags | own}, args.opts)

        kind = type(self)
        super().__init__(
            f"mayfly:{kind.__module__.rpartition('.')[2]}:{kind.__name__}",
            name,
            None,
            pulumi.ResourceOptions.merge(opts, pulumi.ResourceOptions(transformations=[tagged])),
        )
        # Resources don't inherit what their component depends on.
        self.child = pulumi.ResourceOptions(parent=self, depends_on=opts.depends_on if opts else None)
