"""docs/migration has a row for every name of the original systems; the tests, modules and files that it names exist."""

from __future__ import annotations

import ast
import functools
import importlib
import re
from pathlib import Path

import pytest

from vaak.config.load import load
from vaak.config.validate import OF_ONE_TASK
from vaak.config.yaml.tree import ConfigError

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "migration"
NAMES = {
    "universal-pipeline": """
--config | --nproc_per_node | CustomCollator | DiarizationCollator | ENCODER_DECODER_GUIDE.md |
EarlyStoppingCallback | FeatureRedrawCallback | GradientClippingCallback | LRMonitorCallback |
LossRegistry.register("my_loss", MyCustomLoss) | MODEL_FACTORY_GUIDE.md | accelerate >= 0.26.0 |
accelerate launch train.py --config configs/training_example.yml | configs/comprehensive_all_options.yml |
configs/training_example.yml | configs/training_simple.yml | configuration-concepts.md |
configuration-examples.md | dacite >= 1.8.0 | datasets | datasets.name | decoder_model.yml |
encoder_decoder_model.yml | encoder_model.yml | from parse_args import unified_parser |
from training.callbacks import Callback | from training.losses import LossRegistry | full_experiment.yml |
global_config | global_config.cepstral_lifter | global_config.corpus_dir | global_config.dither |
global_config.feature_type | global_config.frame_length | global_config.frame_shift | global_config.high_freq |
global_config.low_freq | global_config.num_ceps | global_config.num_filters | global_config.num_jobs |
global_config.num_mel_bins | global_config.output_dir | global_config.preemph_coeff | global_config.progress_bar |
global_config.remove_dc_offset | global_config.sampling_rate | global_config.snip_edges |
global_config.storage_path | global_config.storage_type | global_config.use_energy | global_config.window_type |
lhotse >= 1.31.0 | model | model.decoder | model.decoder.attention_type | model.decoder.d_model |
model.decoder.num_heads | model.decoder.num_layers | model.encoder | model.encoder.attention_type |
model.encoder.d_model | model.encoder.num_heads | model.encoder.num_layers | model.global_config |
model.global_config.batch_size | model.global_config.d_ff | model.global_config.dropout | model.model_type |
model.name | normalization_guide.md | on_epoch_end | parse_args.py | pip install -r requirements.txt |
positional_encoding_guide.md | python train.py --config configs/training_example.yml | tensorboard >= 2.14.0 |
torch >= 2.0.0 | torchrun --nproc_per_node=4 train.py --config configs/training_example.yml | train.py |
training | training.amp_loss_scale | training.batch_size | training.checkpoint | training.checkpoint.interval |
training.checkpoint.resume | training.checkpoint.save_dir | training.checkpoint.save_total_limit |
training.distributed | training.distributed.backend | training.distributed.sync_gradient_barrier |
training.distributed.world_size | training.early_stopping | training.early_stopping.metric |
training.early_stopping.min_delta | training.early_stopping.mode | training.early_stopping.patience |
training.epochs | training.eval_knobs | training.eval_knobs.label_type | training.eval_knobs.max_duration |
training.feature_redraw_interval | training.fixed_projection | training.gradient_accumulation_steps |
training.gradient_clipping | training.logging | training.logging.interval | training.logging.log_metrics |
training.logging.tensorboard | training.logging.wandb | training.logging.wandb_entity |
training.logging.wandb_project | training.loss | training.loss.auxiliary | training.loss.auxiliary.norm_reg |
training.loss.label_smoothing | training.loss.main | training.mixed_precision | training.optimizer |
training.optimizer.betas | training.optimizer.lr | training.optimizer.type | training.optimizer.weight_decay |
training.performance | training.performance.num_workers | training.performance.pin_memory | training.profiling |
training.random_seed | training.scheduler | training.scheduler.min_lr | training.scheduler.type |
training.scheduler.warmup_steps | training.validation | training.validation.batch_size |
training.validation.interval | training/accelerate_utils.py | training/callbacks.py | training/config.py |
training/diarization_dataloader.py | training/logging_utils.py | training/losses.py | training/optimizers.py |
training/trainer.py | training_minimal.yml | unified_parser() | wandb >= 0.16.0
""",
    "tts-trainer": """
--no-mixed-precision | --resume auto | EnglishTrainingConfig | MPSGradScaler | adaptive_memory_manager.py |
batch_size | checkpoint_manager.py | config_english.py | data_dir | device_type.py | enable_profiling |
english_trainer.py | find_latest_checkpoint() | get_default_config() | get_small_config() | hidden_dim |
interbatch_profiler.py | learning_rate | load_checkpoint() | mps_grad_scaler.py | n_encoder_layers |
save_checkpoint() | save_phoneme_processor() | torch.cuda.amp.GradScaler | trainer.py | use_wandb
""",
    "asr-pipeline": """
--algorithm | --allow-single-cluster | --asr-batch-size | --clustering-algorithm | --config | --data-percent |
--dataset-root | --eval-every-n-epochs | --expert-batch-size | --fp16 | --gating-batch-size |
--gradient-accumulation-steps | --hdbscan-algorithm | --log-file | --max-retries | --metric | --min-cluster-size |
--min-clusters | --min-experts | --min-samples | --mode | --no-fp16 | --no-plot | --no-reduce-experts |
--num-experts | --num-workers | --plot | --plot-method | --pooling | --reduce | --reduce-dim | --resume |
--save-every-n-epochs | --seed | --skip-pretraining | --whisper-model | Config/asr_training.json |
Config/dataloader_config.json | Config/expert_pre_training.json | Data/embeddings/whisper_v2_embeddings |
Data/extracted_data | Runs/<mode>/ | data_config_override | data_config_path | data_mode | extract_embeddings(path) |
mapping.json | mapping_path | output_dir | overwrite | python -m Data.clustering |
python -m Data.embedding_extraction | python Evaluation/plot_asr_metrics.py |
python Evaluation/plot_expert_metrics.py | python Evaluation/plot_gating_metrics.py |
python Training_Scripts/asr_training.py | python Training_Scripts/expert_pre_training.py |
python Training_Scripts/gating_model_pre_training.py | python Training_Scripts/train_pipeline.py | whisper_model
""",
    "hindi-language-model": """
CorpusBuilder | ExperimentConfig.load_config | GradScaler | HindiLanguageModelTrainer | LRFinder | ModelFactory |
TokenizerFactory | accumulation_steps | autocast | batch_size | checkpoint['config'] | checkpoint['epoch'] |
checkpoint['model_state_dict'] | checkpoint['optimizer_state_dict'] | checkpoint['random_state'] |
checkpoint['scheduler_state_dict'] | checkpoint['step'] | checkpoint['train_loss'] | checkpoint['val_loss'] |
checkpoint_best.pt | checkpoint_epoch_{N}.pt | checkpoint_step_{N}.pt | clip_grad_norm_ | config.__dict__ |
config.num_epochs | config['checkpoint_dir'] | config['learning_rate'] | config['project_name'] |
create_dataloader | create_model | create_tokenizer | evaluate(dataloader) | experiment_name |
from src.data_processing.corpus_builder import CorpusBuilder | from src.models.model_factory import ModelFactory |
from src.tokenization.tokenizer_factory import TokenizerFactory |
from src.training.trainer import HindiLanguageModelTrainer |
from src.utils.experiment_config import ExperimentConfig | get_linear_schedule_with_warmup | load_splits |
max_length | metrics['learning_rate'] | metrics['perplexity'] | metrics['train_loss'] | metrics['val_loss'] |
model.load_state_dict | num_training_steps | num_warmup_steps | save_checkpoint(epoch, val_loss) | save_model |
sort_by_difficulty | suggest_lr | torch.load | torch.optim.AdamW | tqdm |
train(train_dataloader, val_dataloader, num_epochs) | train_epoch(dataloader) | wandb.init | wandb.log
""",
    "research-kit": """
--config | --data_config | --input_dir | --model_path | --output_dir | CurriculumScheduler | DataAugmenter |
DistillationTrainer | LRFinder | MultiTaskTrainer | StratifiedKFold | accelerate config |
bash scripts/preprocess.sh | bash scripts/train.sh | compute_environment | config/data_config.yaml |
config/model_config.yaml | config/training_config.yaml | data | data.augmentation | data.augmentation.enabled |
data.augmentation.probability | data.augmentation.techniques | distributed_type | downcast_bf16 |
freeze_parameters | gpu_ids | machine_rank | main_training_function | mixed_precision | model |
model.architecture | model.attention_probs_dropout_prob | model.dropout_prob | model.embed_size |
model.filter_sizes | model.hidden_dropout_prob | model.hidden_size | model.name | model.num_attention_heads |
model.num_filters | model.num_labels | model.num_layers | model.pretrained_model | model.vocab_size |
num_machines | num_processes | num_workers | persistent_workers | pin_memory | python src/data/preprocessing.py |
python src/evaluation/evaluate.py | rdzv_backend | same_network | set_seed | torch.compile |
torch.cuda.empty_cache | torch.load | torch.save | tpu_env | tpu_use_cluster | tpu_use_sudo | training |
training.adam_beta1 | training.adam_beta2 | training.adam_epsilon | training.batch_size |
training.dataloader_num_workers | training.early_stopping_patience | training.early_stopping_threshold |
training.eval_steps | training.fp16 | training.gradient_accumulation_steps | training.learning_rate |
training.log | training.logging_steps | training.max_grad_norm | training.num_epochs | training.optimizer |
training.save_steps | training.save_total_limit | training.scheduler_type | training.warmup_steps |
training.weight_decay | ttest_rel | unfreeze_parameters | use_cpu | uv pip install -e . | wandb | wandb login |
wandb.entity | wandb.name | wandb.notes | wandb.project | wandb.tags
""",
}
"""By page: every key of the system's YAML fragments, every flag, command, class, file and import that it names."""


def rows():
    """(page, cells) of each row of the tables; cells are original name, name in Vaak, notes, shown by."""
    for page in NAMES:
        for line in (PAGES / f"{page}.md").read_text(encoding="utf-8").splitlines():
            if line.startswith("| ") and not line.startswith("| original name"):
                yield page, [cell.strip() for cell in line.strip("|").split(" | ")]


ROWS = list(rows())


@functools.cache
def functions_of(file):
    """The names of the test functions in a file."""
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_every_row_has_its_four_cells():
    assert all(len(cells) == 4 for _, cells in ROWS), [cells for _, cells in ROWS if len(cells) != 4]


@pytest.mark.parametrize("page", NAMES)
def test_every_name_of_the_system_has_one_row(page):
    names = [name.strip() for name in NAMES[page].split("|") if name.strip()]
    found = [name for other, cells in ROWS if other == page for name in re.findall(r"`([^`]+)`", cells[0])]
    assert not [name for name in names if name not in found]
    assert not [name for name in set(found) if found.count(name) > 1]


def test_every_row_is_shown_by_a_test_or_not_built_yet():
    shown = {cells[3] for _, cells in ROWS} - {"not built yet"}
    for reference in shown:
        file, _, name = reference.strip("`").partition("::")
        assert (ROOT / file).is_file(), reference
        assert name in functions_of(file), reference


def test_asking_for_what_is_not_built_is_never_silent(tmp_path):
    (tmp_path / "run.yml").write_text("task: lm\n")
    sections = re.compile(r"`((?:global_config|datasets|model|data|training)\.[\w.]+)`")
    values = {"training.loss.auxiliary.norm_reg": "0.1"}
    asked = [found[1] for _, cells in ROWS if "not built yet" in cells[3] and (found := sections.fullmatch(cells[0]))]
    asked += [key for keys in OF_ONE_TASK.values() for key in keys]  # which a language model doesn't have
    assert len(asked) > 5
    for key in asked:
        try:
            loaded = load([tmp_path / "run.yml"], [f"{key}={values.get(key, 'binary')}"])
        except ConfigError:
            continue
        assert any(key.rpartition(".")[0] in warning for warning in loaded.warnings), key


def test_what_is_built_has_a_name_in_vaak():
    for _, (name, ours, _, shown) in ROWS:
        assert ours or shown == "not built yet" or name.startswith("`model.global_config`"), name


def test_every_name_in_vaak_exists():
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES.glob("*.md"))
    for module, name in re.findall(r"`(vaak[\w.]*):(\w+)`", text):
        assert hasattr(importlib.import_module(module), name), f"{module}:{name}"
    for module, name in re.findall(r"`from (vaak\S*) import (\w+)`", text):
        assert hasattr(importlib.import_module(module), name), f"{module}:{name}"
    for path in re.findall(r"`((?:src|configs|docs)/[^`\s]+)`", " ".join(cells[1] for _, cells in ROWS)):
        assert (ROOT / path).exists(), path
