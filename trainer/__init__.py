"""Mayfly: training on AWS GPUs that live only as long as the work. Start at docs/architecture.md."""

from __future__ import annotations

TYPE_CHECKING = False  # typing's own constant, without its import
if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import pandas

    from trainer.train.predict.loaded import LoadedModel

__version__ = "0.1.0"


def predict(
    models: str | Path | Sequence[str | Path] = (),
    *,
    data: str | Path,
    run: str = "",
    symbols: Sequence[str] = (),
    last: int | None = None,
    model_file: str | Path | Sequence[str | Path] = (),
    held: float | None = None,
    rehearse: bool = False,
    stack: str = "dev",
    local: str | Path | None = None,
) -> pandas.DataFrame:
    """Return the forecasts of models as a table: a row for each model and bar, by symbol, then model, oldest
    bar first.

    Columns: model, symbol, bar and available_at (UTC: start and end of the last bar that the model saw), and
    float64 columns of the target, such as `probability` (docs/models.md). `models` are
    .safetensors files, folders of them, or names or keys in the bucket; `run` stands for all models of a run.
    `data` is a file or folder of candles, `symbols` those to predict (none: all that the models know), `last`
    the number of bars of each (None: every bar), `model_file` the Python files of your own model and
    features. `held` is what an account holds now, a share of its money: agents then say what to hold next, at
    the last bar. `rehearse` and `stack` choose the bucket, as the flags do; `local` is a folder instead of
    it.

    A model or symbol that fails is a warning; if all fail, the first error is raised: UsageError, DataError
    or ConfigError of `trainer.base.errors`. Sets torch to one thread, as training does, so that the digits
    agree.
    """
    from trainer.cli.verbs.predict import PredictionRequest, frame  # late: `import trainer` loads nothing

    names = [models] if isinstance(models, str) or hasattr(models, "__fspath__") else models
    files = [model_file] if isinstance(model_file, str) or hasattr(model_file, "__fspath__") else model_file
    return frame(
        PredictionRequest(
            models=[str(name) for name in names],
            data=str(data),
            run=run,
            symbols=symbols,
            last=last,
            model_file=[str(file) for file in files],
            held=held,
            rehearse=rehearse,
            stack=stack,
            local=None if local is None else str(local),
        )
    )


def load(path: str | Path, *, model_file: str | Path | Sequence[str | Path] = ()) -> LoadedModel:
    """Return a model file as torch has it: `module`, `card` and `prepare(bars)` (docs/models.md).

    `module` is a torch.nn.Module in evaluation mode with the scaler inside: it takes features that are not
    scaled. `prepare` makes its inputs of candles, by symbol, and turns its outputs into forecasts. Of a refit
    it is the model that `predict` uses, of several networks their mean. `model_file` are the Python
    files of your own model and features, since a card runs no code.

    Raises DataError for a file that is no whole model, or whose card can't be used, UsageError for a model
    file that is missing, superfluous or another.
    """
    from pathlib import Path  # late, like torch: `import trainer` loads nothing

    from trainer.train.predict.loaded import load as load_model

    files = [model_file] if isinstance(model_file, str) or hasattr(model_file, "__fspath__") else model_file
    return load_model(Path(path), own_files=[Path(file) for file in files])
