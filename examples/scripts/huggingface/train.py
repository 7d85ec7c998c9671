"""A classifier of short reviews with Hugging Face's Trainer, in the shape of its tutorial.

https://huggingface.co/docs/transformers/training fine-tunes BERT on reviews, as
`--model google-bert/bert-base-cased` does. What differs: reviews come from a CSV file in MAYFLY_DATA,
not from the Hub; files go to MAYFLY_OUT and MAYFLY_CHECKPOINTS; a restart resumes from the last
checkpoint; and without --model it is a small BERT that begins at random and knows the words of these
reviews, so that nothing is fetched.
"""

import argparse
import csv
import json
import os
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    BertForSequenceClassification,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
)
from transformers.trainer_utils import get_last_checkpoint

parser = argparse.ArgumentParser()
parser.add_argument("--model", default="", help="a model of the Hub")
parser.add_argument("--epochs", type=int, default=3)
options = parser.parse_args()

data = Path(os.environ["MAYFLY_DATA"])
out = Path(os.environ["MAYFLY_OUT"])
checkpoints = os.environ["MAYFLY_CHECKPOINTS"]

with (data / "reviews.csv").open() as file:
    reviews = [(row["text"], int(row["label"])) for row in csv.DictReader(file)]
texts, labels = [text for text, _ in reviews], [label for _, label in reviews]

if options.model:
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    model = AutoModelForSequenceClassification.from_pretrained(options.model, num_labels=2)
else:
    words = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.train_from_iterator(texts, trainers.WordLevelTrainer(special_tokens=["[UNK]", "[PAD]"]))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]", pad_token="[PAD]")
    torch.manual_seed(0)
    small = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    config = BertConfig(vocab_size=words.get_vocab_size(), num_labels=2, **small)
    model = BertForSequenceClassification(config)


class Reviews(torch.utils.data.Dataset):
    def __init__(self, texts, labels):
        self.encodings = tokenizer(texts, padding=True, truncation=True, max_length=64, return_tensors="pt")
        self.labels = labels

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        item = {key: values[index] for key, values in self.encodings.items()}
        return {**item, "labels": self.labels[index]}


def accuracy(predicted):
    return {"accuracy": float((predicted.predictions.argmax(-1) == predicted.label_ids).mean())}


split = len(texts) * 4 // 5
trainer = Trainer(
    model=model,
    args=TrainingArguments(
        output_dir=checkpoints,
        num_train_epochs=options.epochs,
        per_device_train_batch_size=16,
        learning_rate=5e-3 if not options.model else 5e-5,
        eval_strategy="epoch",
        save_strategy="epoch",
        save_total_limit=2,
        logging_strategy="epoch",
        report_to="none",
        disable_tqdm=True,
    ),
    train_dataset=Reviews(texts[:split], labels[:split]),
    eval_dataset=Reviews(texts[split:], labels[split:]),
    compute_metrics=accuracy,
)
last = get_last_checkpoint(checkpoints)  # None, unless it is started again
if last:
    print(f"resumes from {Path(last).name}")
trainer.train(resume_from_checkpoint=last)
trainer.save_model(str(out / "model"))
tokenizer.save_pretrained(out / "model")
(out / "scores.json").write_text(json.dumps(trainer.evaluate()))
