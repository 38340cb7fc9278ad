"""Tiny pipelines of the real diffusers classes with random weights, saved to disk: 8x8 latents of 16x16 pictures.

Nothing is downloaded: the CLIP tokenizers are byte-level alphabets without merges, so any prompt is its letters.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

LENGTH = 24  # tokens a text encoder takes; about 22 letters
PIXELS = 16


def _clip_tokenizer(length: int = LENGTH) -> Any:
    from tokenizers.pre_tokenizers import ByteLevel
    from transformers import CLIPTokenizer

    letters = sorted(ByteLevel.alphabet())
    texts = ["<|startoftext|>", "<|endoftext|>", *letters, *(f"{c}</w>" for c in letters), "ca", "cat</w>"]
    return CLIPTokenizer(
        vocab={t: i for i, t in enumerate(texts)}, merges=[("c", "a"), ("ca", "t</w>")], model_max_length=length
    )


def _clip_text(tokenizer: Any, projected: bool, width: int = 16) -> Any:
    from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

    config = CLIPTextConfig(
        vocab_size=len(tokenizer), hidden_size=width, intermediate_size=2 * width, num_hidden_layers=3,
        num_attention_heads=2, max_position_embeddings=LENGTH, projection_dim=width, hidden_act="gelu",
        bos_token_id=0, eos_token_id=1, pad_token_id=1,
    )  # fmt: skip
    return (CLIPTextModelWithProjection if projected else CLIPTextModel)(config).eval()


def _t5() -> tuple[Any, Any]:
    from transformers import T5Config, T5EncoderModel, T5Tokenizer

    letters = "▁abcdefghijklmnopqrstuvwxyz,"
    tokenizer = T5Tokenizer(
        vocab=[("<pad>", 0.0), ("</s>", 0.0), ("<unk>", -9.0), *((c, -2.0) for c in letters)], extra_ids=0
    )
    config = T5Config(vocab_size=64, d_model=32, d_kv=8, d_ff=32, num_layers=1, num_heads=2, is_encoder_decoder=False)
    return tokenizer, T5EncoderModel(config).eval()


def _vae(latent_channels: int = 4, **options: Any) -> Any:
    from diffusers import AutoencoderKL

    return AutoencoderKL(
        **{"in_channels": 3, "out_channels": 3, "down_block_types": ("DownEncoderBlock2D",) * 2,
           "up_block_types": ("UpDecoderBlock2D",) * 2, "block_out_channels": (8, 8), "layers_per_block": 1,
           "latent_channels": latent_channels, "norm_num_groups": 4, "sample_size": PIXELS, "scaling_factor": 0.7}
        | options
    ).eval()  # fmt: skip


def _unet(**options: Any) -> Any:
    from diffusers import UNet2DConditionModel

    return UNet2DConditionModel(
        **{"sample_size": PIXELS // 2, "in_channels": 4, "out_channels": 4, "layers_per_block": 1,
           "block_out_channels": (8, 16), "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
           "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"), "cross_attention_dim": 16,
           "attention_head_dim": 4, "norm_num_groups": 4}
        | options
    ).eval()  # fmt: skip


def sd(prediction: str = "epsilon", seed: int = 0, **unet: Any) -> Any:
    """StableDiffusionPipeline; PNDM with SD 1.5's betas."""
    from diffusers import PNDMScheduler, StableDiffusionPipeline

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        tokenizer = _clip_tokenizer()
        return StableDiffusionPipeline(
            vae=_vae(), text_encoder=_clip_text(tokenizer, False), tokenizer=tokenizer, unet=_unet(**unet),
            scheduler=PNDMScheduler(
                beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear", skip_prk_steps=True,
                steps_offset=1, prediction_type=prediction,
            ),
            safety_checker=None, feature_extractor=None, requires_safety_checker=False,
        )  # fmt: skip


def sdxl(seed: int = 1) -> Any:
    """StableDiffusionXLPipeline: two text encoders of 16 and 32, pooled 32, six time ids."""
    from diffusers import EulerDiscreteScheduler, StableDiffusionXLPipeline

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        one, two = _clip_tokenizer(), _clip_tokenizer()
        unet = _unet(
            cross_attention_dim=48, addition_embed_type="text_time", addition_time_embed_dim=8,
            projection_class_embeddings_input_dim=6 * 8 + 32, use_linear_projection=True,
        )  # fmt: skip
        return StableDiffusionXLPipeline(
            vae=_vae(force_upcast=True), text_encoder=_clip_text(one, False), text_encoder_2=_clip_text(two, True, 32),
            tokenizer=one, tokenizer_2=two, unet=unet,
            scheduler=EulerDiscreteScheduler(beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear"),
            add_watermarker=False,
        )  # fmt: skip


def sd3(t5: bool = False, seed: int = 2) -> Any:
    """StableDiffusion3Pipeline: flow matching with shift 3, a VAE with a shift, T5 absent or tiny."""
    from diffusers import FlowMatchEulerDiscreteScheduler, SD3Transformer2DModel, StableDiffusion3Pipeline

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        one, two = _clip_tokenizer(), _clip_tokenizer()
        transformer = SD3Transformer2DModel(
            sample_size=PIXELS // 2, patch_size=2, in_channels=4, out_channels=4, num_layers=1, attention_head_dim=8,
            num_attention_heads=2, joint_attention_dim=32, caption_projection_dim=16, pooled_projection_dim=32,
            pos_embed_max_size=8,
        )  # fmt: skip
        tokenizer_3, text_encoder_3 = _t5() if t5 else (None, None)
        return StableDiffusion3Pipeline(
            transformer=transformer.eval(),
            vae=_vae(shift_factor=0.05, use_quant_conv=False, use_post_quant_conv=False),
            text_encoder=_clip_text(one, True), text_encoder_2=_clip_text(two, True), text_encoder_3=text_encoder_3,
            tokenizer=one, tokenizer_2=two, tokenizer_3=tokenizer_3,
            scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0),
        )  # fmt: skip


def _gemma() -> tuple[Any, Any]:
    from transformers import Gemma2Config, Gemma2Model, GemmaTokenizer

    texts = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "▁", *(chr(c) for c in range(33, 127))]
    tokenizer = GemmaTokenizer(vocab={t: i for i, t in enumerate(texts)}, merges=[], add_bos_token=True)
    config = Gemma2Config(
        vocab_size=len(texts), hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=8, pad_token_id=0, eos_token_id=1, bos_token_id=2, sliding_window=16,
        max_position_embeddings=4096,
    )  # fmt: skip
    return tokenizer, Gemma2Model(config).eval()


def flux(guidance: bool = True, dynamic: bool = True, seed: int = 4, **transformer: Any) -> Any:
    """FluxPipeline as FLUX.1-dev: an embedded guidance and dynamic shifting; without both as FLUX.1-schnell."""
    from diffusers import FlowMatchEulerDiscreteScheduler, FluxPipeline, FluxTransformer2DModel

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        clip = _clip_tokenizer()
        tokenizer_2, text_encoder_2 = _t5()
        network = FluxTransformer2DModel(
            **{"patch_size": 1, "in_channels": 16, "num_layers": 1, "num_single_layers": 1, "attention_head_dim": 16,
               "num_attention_heads": 2, "joint_attention_dim": 32, "pooled_projection_dim": 16,
               "guidance_embeds": guidance, "axes_dims_rope": (4, 4, 8)}
            | transformer
        )  # fmt: skip
        return FluxPipeline(
            transformer=network.eval(),
            vae=_vae(shift_factor=0.05, use_quant_conv=False, use_post_quant_conv=False),
            text_encoder=_clip_text(clip, False), text_encoder_2=text_encoder_2,
            tokenizer=clip, tokenizer_2=tokenizer_2,
            scheduler=FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=dynamic),
        )  # fmt: skip


def pixart(sigma: bool = False, seed: int = 5) -> Any:
    """PixArtAlphaPipeline or PixArtSigmaPipeline: eight output channels, half of them a variance."""
    from diffusers import DPMSolverMultistepScheduler, PixArtAlphaPipeline, PixArtSigmaPipeline
    from diffusers import PixArtTransformer2DModel as Network

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        tokenizer, text_encoder = _t5()
        network = Network(
            sample_size=PIXELS // 2, patch_size=2, in_channels=4, out_channels=8, num_layers=1, attention_head_dim=8,
            num_attention_heads=2, cross_attention_dim=16, caption_channels=32, norm_num_groups=4,
        )  # fmt: skip
        with torch.no_grad():
            network.scale_shift_table.mul_(3)
        return (PixArtSigmaPipeline if sigma else PixArtAlphaPipeline)(
            tokenizer=tokenizer, text_encoder=text_encoder, vae=_vae(), transformer=network.eval(),
            scheduler=DPMSolverMultistepScheduler(beta_schedule="linear"),
        )  # fmt: skip


def sana(seed: int = 6, **transformer: Any) -> Any:
    """SanaPipeline: a deep-compression autoencoder, Gemma 2, and flow matching by DPM-Solver as Sana ships it."""
    from diffusers import AutoencoderDC, DPMSolverMultistepScheduler, SanaPipeline, SanaTransformer2DModel

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        tokenizer, text_encoder = _gemma()
        network = SanaTransformer2DModel(
            **{"in_channels": 4, "out_channels": 4, "num_layers": 1, "num_attention_heads": 2, "attention_head_dim": 8,
               "num_cross_attention_heads": 2, "cross_attention_head_dim": 8, "cross_attention_dim": 16,
               "caption_channels": 16, "sample_size": PIXELS // 2, "patch_size": 1}
            | transformer
        )  # fmt: skip
        vae = AutoencoderDC(
            in_channels=3, latent_channels=4, attention_head_dim=2, encoder_block_types=("ResBlock", "ResBlock"),
            decoder_block_types=("ResBlock", "ResBlock"), encoder_block_out_channels=(8, 8),
            decoder_block_out_channels=(8, 8), encoder_layers_per_block=(1, 1), decoder_layers_per_block=(1, 1),
            encoder_qkv_multiscales=((), ()), decoder_qkv_multiscales=((), ()), scaling_factor=0.7,
            downsample_block_type="conv", upsample_block_type="interpolate", decoder_norm_types="rms_norm",
            decoder_act_fns="silu",
        )  # fmt: skip
        return SanaPipeline(
            tokenizer=tokenizer, text_encoder=text_encoder, vae=vae.eval(), transformer=network.eval(),
            scheduler=DPMSolverMultistepScheduler(
                use_flow_sigmas=True, flow_shift=3.0, prediction_type="flow_prediction", final_sigmas_type="zero"
            ),
        )  # fmt: skip


def lumina2(seed: int = 7) -> Any:
    """Lumina2Pipeline: time from noise to picture, the negative velocity, shift 6."""
    from diffusers import FlowMatchEulerDiscreteScheduler, Lumina2Pipeline, Lumina2Transformer2DModel

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        tokenizer, text_encoder = _gemma()
        network = Lumina2Transformer2DModel(
            sample_size=PIXELS // 2, patch_size=2, in_channels=4, hidden_size=24, num_layers=1, num_refiner_layers=1,
            num_attention_heads=1, num_kv_heads=1, multiple_of=8, axes_dim_rope=(8, 8, 8), axes_lens=(300, 16, 16),
            cap_feat_dim=16,
        )  # fmt: skip
        return Lumina2Pipeline(
            tokenizer=tokenizer, text_encoder=text_encoder, transformer=network.eval(),
            vae=_vae(shift_factor=0.05, use_quant_conv=False, use_post_quant_conv=False),
            scheduler=FlowMatchEulerDiscreteScheduler(shift=6.0),
        )  # fmt: skip


KINDS: dict[str, Callable[[], Any]] = {
    "sd": sd,
    "sd-v": lambda: sd("v_prediction", seed=3),
    "sdxl": sdxl,
    "sd3": sd3,
    "sd3-t5": lambda: sd3(t5=True),
    "flux": flux,
    "pixart": pixart,
    "pixart-sigma": lambda: pixart(sigma=True),
    "sana": sana,
    "lumina2": lumina2,
}

OPTIONS: dict[str, dict[str, Any]] = {"flux": {"size": PIXELS}}  # of the recipe's model section, to load it here


def save(kind: str, folder: Path) -> Path:
    KINDS[kind]().save_pretrained(str(folder), safe_serialization=True)
    return folder


def read(folder: Path) -> Any:
    """The pipeline as diffusers reads it."""
    import json

    from diffusers import DiffusionPipeline

    index = json.loads((folder / "model_index.json").read_text())
    absent = {name: None for name, value in index.items() if value == [None, None]}
    pipe = DiffusionPipeline.from_pretrained(str(folder), **absent)
    pipe.set_progress_bar_config(disable=True)
    return pipe


def clip_processor() -> Any:
    """The class that prepares pictures by Pillow; transformers has renamed it."""
    import transformers

    return getattr(transformers, "CLIPImageProcessorPil", transformers.CLIPImageProcessor)
