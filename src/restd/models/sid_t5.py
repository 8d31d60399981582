"""A T5 whose tokens include the codes of every level: what all backbones made of `transformers`' T5 share."""

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from restd.artifacts.store import Writer
from restd.encode import Inputs
from restd.models.contract import (
    Backbone,
    Memory,
    Output,
    code_mask,
    expected_score,
    has_targets,
    position_mean,
    refuse_bad_steps,
    soft_code_loss,
)
from restd.models.decode_protocol import Normalizer, Stepper


class SidT5(Backbone):
    """A T5 or mT5 that generates Semantic IDs; what it reads is the business of those who inherit.

    States are the decoder's output after its final norm, before the scaling T5 applies for tied embeddings.

    Args:
        model: `transformers`' own.
        tokens: of every level's codes; places behind a level's last code are ignored.
        sizes: codes of each level.
        config: settings of the one who inherits.
        steps: latent steps before the first code; 0 for none.
        ends: whether code 0 ends an identifier.
    """

    def __init__(
        self,
        model: Any,
        tokens: Int64[Tensor, "level code"],
        sizes: tuple[int, ...],
        config: Any,
        *,
        steps: int,
        ends: bool = False,
    ) -> None:
        super().__init__(sizes, model.config.d_model, config, ends=ends)
        refuse_bad_steps(steps)
        self.steps = steps
        self.model: Any = model
        self.tokens: Tensor
        self.code_mask: Tensor
        self.register_buffer("tokens", tokens, persistent=False)
        self.register_buffer("code_mask", code_mask(sizes), persistent=False)

    def write(self, writer: Writer, state: Mapping[str, Tensor], ids: pa.StringArray) -> None:
        """Weights and shape, as plain `transformers` loads them."""
        from transformers.utils.logging import disable_progress_bar

        weights = {name.removeprefix("model."): state[name] for name in state if name.startswith("model.")}
        disable_progress_bar()
        self.model.save_pretrained(writer.folder, state_dict=weights)

    def encode(self, inputs: Inputs) -> Memory:
        """Run the encoder."""
        states = self.model.encoder(input_ids=inputs.values, attention_mask=inputs.mask).last_hidden_state
        return Memory(states, inputs.mask)

    def states(self, memory: Memory, sids: Int64[Tensor, "row given"]) -> Output:
        """States that predict each code and the end; the last latent step and all codes go in together."""
        levels, given = len(self.sizes), sids.shape[1]
        embed = self.model.get_input_embeddings()
        begin = sids.new_full((len(sids), 1), self.model.config.decoder_start_token_id)
        following, cache, latents = embed(begin), None, []
        for _ in range(max(self.steps, 1) - 1):
            decoded = self._decode(memory, following, cache, keep=True)
            following, cache = decoded.last_hidden_state, decoded.past_key_values
            latents.append(following)
        level = torch.arange(given, device=sids.device)
        inputs = torch.cat([following, embed(self.tokens[level, sids])], dim=1)
        states = self._decode(memory, inputs, cache, keep=cache is not None).last_hidden_state
        ending = states[:, levels] if given == levels else None
        thoughts = torch.cat([*latents, states[:, :1]], dim=1) if self.steps else None
        return Output(states[:, : min(given + 1, levels)], latents=thoughts, ending=ending)

    def _decode(self, memory: Memory, inputs: Float[Tensor, "row position width"], cache: Any, *, keep: bool) -> Any:
        return self.model.decoder(
            inputs_embeds=inputs,
            encoder_hidden_states=memory.states,
            encoder_attention_mask=memory.mask,
            past_key_values=cache,
            use_cache=keep,
        )

    def vocabulary_logits(self, states: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch word"]:
        """Scores over the whole vocabulary."""
        return self.model.lm_head(states * self.output_scale)

    def logits(self, states: Float[Tensor, "row level width"]) -> Float[Tensor, "row level code"]:
        """Scores over each level's codes; codes that a level lacks get -inf."""
        levels = states.shape[1]
        weight = self.model.lm_head.weight[self.tokens[:levels]]
        scores = torch.einsum("rlw,lcw->rlc", states * self.output_scale, weight)
        return scores.masked_fill(~self.code_mask[:levels], -torch.inf)

    @property
    def soft_targets(self) -> bool:
        """Yes."""
        return True

    def soft_sid_loss(
        self,
        output: Output,
        targets: Float[Tensor, "row level code"],
        *,
        allowed: Bool[Tensor, "row level code"] | None = None,
        weights: Float[Tensor, "position"] | None = None,
    ) -> Float[Tensor, ""]:
        """Over the whole vocabulary, and the end where there is one; over the allowed codes alone where they are given.

        Nothing but the end is allowed behind a whole Semantic ID, so that it costs nothing then.
        """
        if allowed is not None:
            return soft_code_loss(self.logits(output.states), targets, allowed=allowed, weights=weights, ends=self.ends)
        scores = self.vocabulary_logits(output.states).float().log_softmax(dim=-1)
        losses = -expected_score(scores.gather(2, self.tokens.expand(len(scores), -1, -1)), targets)
        if output.ending is not None:
            end = self.vocabulary_logits(output.ending).float().log_softmax(dim=-1)[:, self.model.config.eos_token_id]
            losses = torch.cat([losses, -end[:, None]], dim=1)
        if not self.ends:
            return position_mean(losses, weights)
        learned = has_targets(targets)
        if output.ending is not None:
            learned = torch.cat([learned, learned.new_ones(len(learned), 1)], dim=1)
        return position_mean(losses, weights, learned=learned)

    @property
    def output_scale(self) -> float:
        """What T5 multiplies states with before an output layer that is tied to its embeddings."""
        shape = self.model.config
        return self.width**-0.5 if shape.model_type == "t5" and shape.scale_decoder_outputs else 1.0

    def recency(self) -> Float[Tensor, "distance head"] | None:
        """What distance from the end of the memory adds to attention; T5's encoder sees the end itself."""
        return None

    def stepper(self, *, normalizer: Normalizer = "full_vocab") -> Stepper:
        """Copy the decoder's weights for decoding level by level."""
        from restd.models.t5_stepper import T5Stepper

        return T5Stepper(self, normalizer=normalizer)
