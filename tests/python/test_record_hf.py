"""Tests of traces/record_hf.py: recorded tensors equal the model's attention inputs, and kvsim reads the files.

Run by ctest: test_record_hf.py PROGRAM SCRATCH [unittest names]. Prints KVSIM-SKIPPED and the reason without torch, or without
transformers for the test class that needs it.
"""

import importlib.util
import json
import os
import subprocess
import sys
import types
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "..", "traces")]


def skip_unless(*packages):
    for package in packages:
        if importlib.util.find_spec(package) is None:
            print(f"KVSIM-SKIPPED: no {package}: {sys.executable} does not have it")
            sys.exit(0)


skip_unless("torch", "numpy")
import numpy as np  # noqa: E402
import torch  # noqa: E402

import record_hf  # noqa: E402
import safetensors_reader  # noqa: E402
from tiny_llama import TinyAttention, TinyLlama, causal_sdpa  # noqa: E402
import tiny_llama  # noqa: E402

PROGRAM = SCRATCH = ""
TOKENS = [int(t) for t in np.random.default_rng(7).integers(0, 64, 48)]


def kvsim(*words):
    done = subprocess.run([PROGRAM, *words], capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


def attention_outputs(model, tokens, projection="o_proj", owner=TinyAttention):
    """Returns the input [T, Hq * d] of every layer's output projection, recorded by separate hooks."""
    seen, hooks = [], []
    for module in model.modules():
        if isinstance(module, owner):
            hooks.append(getattr(module, projection).register_forward_pre_hook(
                lambda _, args: seen.append(args[0].detach().float().reshape(len(tokens), -1).numpy())))
    with torch.no_grad():
        model(input_ids=torch.tensor([tokens]), use_cache=False)
    for hook in hooks:
        hook.remove()
    return seen


def recomputed(arrays, metadata, layer):
    """Returns [T, Hq * d]: causal softmax attention over the file's vectors in float64."""
    q, k, v = (arrays[f"layers.{layer}.{x}"].astype(np.float64) for x in "qkv")
    group = q.shape[1] // k.shape[1]
    out = np.empty_like(q)
    for h in range(q.shape[1]):
        logits = q[:, h] @ k[:, h // group].T * float(metadata["softmax_scale"])
        logits[np.triu_indices(len(q), 1)] = -np.inf
        weights = np.exp(logits - logits.max(1, keepdims=True))
        out[:, h] = weights / weights.sum(1, keepdims=True) @ v[:, h // group]
    return out.reshape(len(q), -1)


class Case(unittest.TestCase):
    def path(self, name):
        return os.path.join(SCRATCH, f"{self.id().rsplit('.', 1)[-1]}-{name}.safetensors")

    def recorded(self, model, name="trace", tokens=None, **options):
        options.setdefault("prompt_len", 32)
        path = self.path(name)
        record_hf.record(model, tokens or TOKENS, path, **options)
        self.assertEqual(os.listdir(SCRATCH).count(os.path.basename(path)), 1)
        return path, *safetensors_reader.read(path)

    def assert_close(self, got, wanted, tolerance):
        error = np.linalg.norm(got - wanted) / np.linalg.norm(wanted)
        self.assertLess(error, tolerance)

    def accepted(self, path):
        status, out, err = kvsim("trace", "info", path, "--json")
        self.assertEqual(status, 0, err)
        self.assertEqual(kvsim("trace", "check", path)[0], 0)
        return json.loads(out)


class Recorded(Case):
    def check_attention(self, model, tolerance=1e-5, **options):
        path, metadata, arrays = self.recorded(model, **options)
        for layer, wanted in enumerate(attention_outputs(model, TOKENS)):
            self.assert_close(recomputed(arrays, metadata, layer), wanted, tolerance)
        self.accepted(path)
        return metadata, arrays

    def test_eager_attention_is_that_of_the_file(self):
        metadata, arrays = self.check_attention(TinyLlama("eager"))
        self.assertEqual(arrays["layers.0.k"].shape, (48, 2, 8))
        self.assertEqual(arrays["layers.2.q"].shape, (48, 6, 8))
        self.assertEqual(arrays["tokens"].tolist(), TOKENS)
        self.assertEqual((metadata["rope_style"], metadata["prompt_len"]), ("half_split", "32"))

    def test_chunks_are_recorded_as_the_model_computes_each_alone(self):
        model = TinyLlama("eager")
        path, metadata, arrays = self.recorded(model, chunks=[0, 10, 24])
        self.assertEqual(metadata["chunks"], "[0, 10, 24]")
        self.assertTrue(self.accepted(path)["has_reused"])
        for layer in range(3):
            rows = {part: (arrays[f"layers.{layer}.{part}"], arrays[f"layers.{layer}.reused.{part}"]) for part in "kv"}
            for whole, reused in rows.values():
                # The first chunk has no prefix, and tokens of decode steps are not in a chunk.
                self.assert_close(reused[:10], whole[:10], 1e-6)
                np.testing.assert_array_equal(reused[32:], whole[32:])
            apart = np.abs(rows["v"][1] - rows["v"][0]).max(axis=(1, 2))
            if layer == 0:  # before any attention, a row depends only on its own token
                self.assertLess(apart.max(), 1e-5)
            else:
                self.assertGreater(apart[10:32].min(), 1e-4)
        # The same chunk recorded at position 0: its keys differ only by a RoPE rotation.
        _, _, apart_only = self.recorded(model, "separate", tokens=TOKENS[10:24], prompt_len=14)
        for layer in range(3):
            self.assert_close(arrays[f"layers.{layer}.reused.v"][10:24], apart_only[f"layers.{layer}.v"], 1e-5)
            logits = [np.einsum("thd,uhd->htu", k, k) for k in (arrays[f"layers.{layer}.reused.k"][10:24],
                                                                apart_only[f"layers.{layer}.k"])]
            self.assert_close(logits[0], logits[1], 1e-5)
        errors = []
        for ratio in ("1", "0.15", "0"):
            status, out, err = kvsim("replay", "--trace", path, "-m", "cacheblend", "-p", f"recompute_ratio={ratio}", "--json")
            self.assertEqual(status, 0, err)
            errors.append(json.loads(out)["methods"][0]["rel_error_mean"])
        self.assertLess(errors[0], 1e-6)
        self.assertGreater(errors[1], errors[0])
        self.assertGreater(errors[2], errors[1])

    def test_expanded_keys_of_sdpa_become_stored_heads(self):
        functional = torch.nn.functional
        is_missing = not hasattr(functional, "scaled_dot_product_attention")
        if is_missing:
            functional.scaled_dot_product_attention = causal_sdpa
        try:
            _, arrays = self.check_attention(TinyLlama("sdpa"))
            model = TinyLlama("sdpa")
            del model.config.num_key_value_heads  # only the repeated heads reveal the number of KV heads now
            _, _, again = self.recorded(model, "unsaid")
        finally:
            if is_missing:
                del functional.scaled_dot_product_attention
        self.assertEqual(arrays["layers.0.k"].shape, (48, 2, 8))
        for name, array in arrays.items():
            np.testing.assert_array_equal(array, again[name])

    def test_functions_of_the_registry_are_recorded_and_restored(self):
        modeling = types.ModuleType("transformers.modeling_utils")
        original = tiny_llama.eager_attention_forward
        modeling.ALL_ATTENTION_FUNCTIONS = {"own": original}
        before = sys.modules.get("transformers.modeling_utils")
        sys.modules["transformers.modeling_utils"] = modeling
        try:
            model = TinyLlama("own")
            _, arrays = self.check_attention(model)
            self.assertIs(modeling.ALL_ATTENTION_FUNCTIONS["own"], original)
        finally:
            del sys.modules["transformers.modeling_utils"]
            if before is not None:
                sys.modules["transformers.modeling_utils"] = before
        self.assertIs(tiny_llama.eager_attention_forward, original)
        self.assertNotIn("forward", model.layers[0].self_attn.__dict__)
        _, _, eager = self.recorded(TinyLlama("eager"), "eager")
        for name, array in arrays.items():
            np.testing.assert_array_equal(array, eager[name])

    def test_hidden_states_are_the_attention_modules_input(self):
        model = TinyLlama("eager")
        _, _, arrays = self.recorded(model, wo=True)
        for i, layer in enumerate(model.layers):
            hidden = torch.tensor(arrays[f"layers.{i}.hidden"])
            v = layer.self_attn.v_proj(hidden).detach().numpy().reshape(48, 2, 8)
            np.testing.assert_allclose(arrays[f"layers.{i}.v"], v, rtol=1e-5, atol=1e-6)
            np.testing.assert_array_equal(arrays[f"layers.{i}.wo"], layer.self_attn.o_proj.weight.detach().numpy())

    def test_an_output_projection_that_is_not_a_linear_module_is_probed(self):
        class Transposed(torch.nn.Module):  # GPT-2 stores its weight matrices transposed
            def __init__(self, linear):
                super().__init__()
                self.weight = torch.nn.Parameter(linear.weight.T.contiguous())
                self.bias = linear.bias

            def forward(self, x):
                return x @ self.weight + self.bias

        model = TinyLlama("eager")
        _, _, plain = self.recorded(model, "plain", wo=True)
        for layer in model.layers:
            layer.self_attn.o_proj = Transposed(layer.self_attn.o_proj)
        _, _, read_out = self.recorded(model, "read-out", wo=True)
        np.testing.assert_allclose(read_out["layers.1.wo"], plain["layers.1.wo"], atol=1e-6)

    def test_formats_round_to_nearest(self):
        model = TinyLlama("eager")
        _, _, exact = self.recorded(model, "exact")
        for name, bits in (("float16", 11), ("bfloat16", 8)):
            _, metadata, arrays = self.recorded(model, name, dtype=getattr(torch, name))
            self.assertEqual(metadata["dtype"], name)
            for part in ("q", "k", "v", "hidden"):
                a, b = arrays[f"layers.0.{part}"].astype(np.float64), exact[f"layers.0.{part}"]
                self.assertTrue(np.all(np.abs(a - b) <= 2.0 ** -bits * np.abs(b) + 1e-7))
        self.check_attention(model, tolerance=1e-3, dtype=torch.float16, name="checked")

    def test_layers_and_heads_chosen_are_those_of_the_whole(self):
        model = TinyLlama("eager", layers=4)
        _, _, whole = self.recorded(model, "whole", wo=True)
        path, metadata, some = self.recorded(model, "some", wo=True, layers=[3, 1], kv_heads=[1])
        self.assertEqual((metadata["recorded_layers"], metadata["num_q_heads"]), ("3,1", "3"))
        for i, layer in enumerate([3, 1]):
            np.testing.assert_array_equal(some[f"layers.{i}.q"], whole[f"layers.{layer}.q"][:, 3:])
            np.testing.assert_array_equal(some[f"layers.{i}.k"], whole[f"layers.{layer}.k"][:, 1:])
            np.testing.assert_array_equal(some[f"layers.{i}.wo"], whole[f"layers.{layer}.wo"][:, 24:])
            np.testing.assert_array_equal(some[f"layers.{i}.hidden"], whole[f"layers.{layer}.hidden"])
        self.accepted(path)

    def test_later_tokens_change_nothing_before_them(self):
        model = TinyLlama("eager")
        _, _, short = self.recorded(model, "short", tokens=TOKENS[:40])
        _, _, long = self.recorded(model, "long")
        for name, array in short.items():
            np.testing.assert_allclose(array, long[name][:40], rtol=1e-4, atol=1e-6)

    def test_a_repeat_is_input_of_kvzip_and_similar_methods(self):
        prompt = TOKENS[:24]
        path, _, _ = self.recorded(TinyLlama("eager"), tokens=prompt + TOKENS[24:26] + prompt[1:], prompt_len=24,
                                   wo=True, repeat=(26, 23))
        self.assertEqual(self.accepted(path)["repeat_start"], 26)
        methods = {}
        for words in (["full,streaming-llm,h2o,zeromerge,kvzip,kvzip-plus"],
                      ["kvzap", "--param", "kvzap_source=oracle", "--param", "window=4"]):
            status, out, err = kvsim("replay", "--trace", path, "--json", "--budget", "0.5", "--method", *words)
            self.assertEqual(status, 0, err)
            document = json.loads(out)
            self.assertEqual(document["skipped"], [])
            methods.update((method["name"], method) for method in document["methods"])
        self.assertEqual(len(methods), 7)
        self.assertLess(methods["full"]["rel_error_mean"], 1e-6)
        for name in ("h2o", "kvzip", "kvzip-plus", "kvzap"):
            self.assertGreater(methods[name]["rel_error_mean"], 1e-3)  # with random weights every method loses accuracy


class Refused(Case):
    def refused(self, words, model, **options):
        with self.assertRaises(record_hf.RecordError) as caught:
            self.recorded(model, **options)
        for word in words:
            self.assertIn(word, str(caught.exception))
        self.assertEqual([f for f in os.listdir(SCRATCH) if f.startswith(self.id().rsplit(".", 1)[-1])], [])

    def test_attention_that_the_format_cannot_hold(self):
        self.refused(["layer 0", "softcap"], TinyLlama("eager", softcap=2.0))
        self.refused(["layer 0", "window"], TinyLlama("eager", hidden_window=12))

    def test_a_model_whose_attention_is_not_recorded(self):
        class Deaf(torch.nn.Module):
            def forward(self, input_ids, use_cache):
                return input_ids

        self.refused(["no attention was seen"], Deaf())

    def test_chunks_out_of_order(self):
        for chunks in ([], [1, 8], [0, 8, 8], [0, 32], [8, 0]):
            self.refused(["chunks", "0 to 31"], TinyLlama("eager"), chunks=chunks)

    def test_numbers_out_of_range(self):
        self.refused(["0 to 2", "[3]"], TinyLlama("eager"), layers=[3])
        self.refused(["0 to 1"], TinyLlama("eager"), kv_heads=[0, 0])
        self.refused(["1 to 48"], TinyLlama("eager"), prompt_len=49)
        self.refused(["32 positions"], TinyLlama("eager", max_position_embeddings=32))
        for text in ("", "3-1", "1,1", "x"):
            with self.assertRaises(record_hf.RecordError):
                record_hf.numbers(text, "--layers")
        self.assertEqual(record_hf.numbers("0,4,8-10", "--layers"), [0, 4, 8, 9, 10])

    def test_values_that_float16_does_not_hold(self):
        model = TinyLlama("eager")
        with torch.no_grad():
            model.layers[1].self_attn.v_proj.weight *= 1e6
        self.refused(["layers.1.v", "bfloat16"], model, dtype=torch.float16)

    def test_places_that_cannot_be_written(self):
        for path in (os.path.join(SCRATCH, "no", "such", "folder"), SCRATCH):
            with self.assertRaisesRegex(record_hf.RecordError, "cannot be written"):
                record_hf.record(TinyLlama("eager"), TOKENS, path, prompt_len=32)
        self.assertFalse(any(".partial-" in name for name in os.listdir(os.path.dirname(SCRATCH))))

    def test_layers_that_differ(self):
        model = TinyLlama("eager")
        model.layers[2].self_attn.scaling *= 2
        self.refused(["layer 2", "--layers"], model)
        self.recorded(model, layers=[0, 1])
        os.remove(self.path("trace"))

    def test_a_folder_that_is_not_there(self):
        record = os.path.join(HERE, "..", "..", "traces", "record_hf.py")
        done = subprocess.run([sys.executable, record, "./nowhere", "-o", self.path("x"), "--text", __file__],
                              capture_output=True, text=True)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("./nowhere: no such folder" if importlib.util.find_spec("transformers") else
                      "transformers is missing", done.stderr)


class Program(Case):
    """Tests of main(), with a replacement for transformers that loads the tiny model and uses bytes as tokens."""

    def setUp(self):
        substitute = types.ModuleType("transformers")
        substitute.__version__ = "0.0"
        model = _without_cache(TinyLlama("eager"))
        model.config = model.model.config
        substitute.AutoModelForCausalLM = types.SimpleNamespace(from_pretrained=lambda name, **_: model)
        substitute.AutoTokenizer = types.SimpleNamespace(from_pretrained=lambda name, **_: self.encoded)
        self.before = sys.modules.get("transformers")
        sys.modules["transformers"] = substitute
        self.text = os.path.join(SCRATCH, "text.txt")
        with open(self.text, "w", encoding="utf-8") as file:
            file.write("It was the best of times, it was the worst of times.")

    def tearDown(self):
        del sys.modules["transformers"]
        if self.before is not None:
            sys.modules["transformers"] = self.before

    @staticmethod
    def encoded(text, add_special_tokens=True):
        return {"input_ids": [1] * add_special_tokens + [b % 64 for b in text.encode()]}

    def run_main(self, *words):
        path = self.path("trace")
        status = record_hf.main([SCRATCH, "-o", path, "--text", self.text, "--quiet", *words])
        return (status, *safetensors_reader.read(path)) if status == 0 else (status, {}, {})

    def test_a_text_is_prompt_and_decode_steps(self):
        status, metadata, arrays = self.run_main("--tokens", "20", "--decode", "5")
        self.assertEqual((status, metadata["prompt_len"], metadata["sampling"]), (0, "15", "none: teacher-forced"))
        self.assertEqual(arrays["tokens"].tolist(), self.encoded("It was the best of ")["input_ids"])
        self.assertTrue(metadata["text"].startswith("It was"))

    def test_decode_steps_are_generated(self):
        status, metadata, arrays = self.run_main("--tokens", "20", "--decode", "5", "--generate", "--no-text")
        self.assertEqual((status, metadata["prompt_len"], metadata["sampling"]), (0, "15", "greedy"))
        self.assertEqual(arrays["tokens"][:15].tolist(), self.encoded("It was the bes")["input_ids"])
        self.assertNotIn("text", metadata)

    def test_a_repeat_follows_prompt_and_separator(self):
        status, metadata, arrays = self.run_main("--tokens", "20", "--repeat", "--separator", "::")
        tokens = arrays["tokens"].tolist()
        self.assertEqual((status, metadata["repeat_start"], metadata["repeat_len"]), (0, "22", "19"))
        self.assertEqual(tokens[20:22], self.encoded("::", add_special_tokens=False)["input_ids"])
        self.assertEqual(tokens[22:], tokens[1:20])
        self.accepted(self.path("trace"))

    def test_separators_among_the_tokens_are_named(self):
        words = {1: "", 2: ".", 3: " ,", 4: "word", 5: "\n", 6: "   ", 7: "     ", 8: "..", 9: "? ", 10: "\t"}
        self.assertEqual(record_hf.separator_ids([9, 8, 7, 6, 5, 4, 3, 2, 1, 2], lambda ids: words[ids[0]]), [2, 3, 5, 6, 9])
        self.assertNotIn("separator_ids", self.run_main("--tokens", "20")[1])

    def test_more_tokens_than_the_text_has(self):
        self.assertEqual(self.run_main("--tokens", "200")[0], 2)
        self.assertEqual(self.run_main("--tokens", "20", "--decode", "20")[0], 2)
        self.assertEqual(self.run_main("--tokens", "20", "--decode", "2", "--repeat")[0], 2)
        self.assertEqual(self.run_main("--layers", "7")[0], 2)
        self.assertFalse(os.path.exists(self.path("trace")))


class Rotary(unittest.TestCase):
    def test_only_rope_that_theta_fully_describes_is_recorded(self):
        plain = types.SimpleNamespace(model_type="llama", rope_theta=5e5)
        about, note = record_hf.rope_metadata(plain, None, 128)
        self.assertEqual((about["rope_style"], about["rope_theta"], note), ("half_split", "500000.0", None))
        for change in ({"rope_scaling": {"rope_type": "llama3"}}, {"partial_rotary_factor": 0.25}, {"rope_theta": None},
                       {"model_type": "gptj"}, {"rope_local_base_freq": 1e4}):
            about, note = record_hf.rope_metadata(types.SimpleNamespace(**{**vars(plain), **change}), None, 128)
            self.assertNotIn("rope_theta", about)
            self.assertIsNotNone(note)
        newer = types.SimpleNamespace(model_type="gptj", rope_parameters={"rope_type": "default", "rope_theta": 1e4})
        self.assertEqual(record_hf.rope_metadata(newer, "interleaved", 64)[0]["rope_style"], "interleaved")


class Generated(unittest.TestCase):
    def test_greedy_tokens_are_the_likeliest_and_a_seed_repeats(self):
        model = TinyLlama("eager")
        out = record_hf.continued(_without_cache(model), TOKENS[:8], 4)
        for t in range(8, 12):
            logits = model(torch.tensor([out[:t]])).logits[0, -1]
            self.assertEqual(out[t], int(logits.argmax()))
        drawn = [record_hf.continued(_without_cache(model), TOKENS[:8], 8, 50.0, seed) for seed in (3, 3, 4)]
        self.assertEqual(drawn[0], drawn[1])
        self.assertNotEqual(drawn[0], drawn[2])


def _without_cache(model):
    class Wrapped(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, input_ids, use_cache=False):
            return self.model(input_ids)

    return Wrapped()


class Transformers(Case):
    """Tests with tiny models of the classes in transformers, with random weights."""

    def families(self):
        import transformers as t
        common = dict(vocab_size=64, hidden_size=48, num_hidden_layers=2, num_attention_heads=6, max_position_embeddings=128)
        gqa = dict(common, num_key_value_heads=2, intermediate_size=96)
        plain = dict(common, intermediate_size=96)
        yield "LlamaForCausalLM", t.LlamaConfig(**gqa), "o_proj", "LlamaAttention"
        for name, config, keys in (("Mistral", "MistralConfig", dict(gqa, sliding_window=None)),
                                   ("Qwen2", "Qwen2Config", gqa), ("Qwen3", "Qwen3Config", dict(gqa, head_dim=8)),
                                   ("Phi3", "Phi3Config", dict(gqa, pad_token_id=0)),
                                   ("Gemma", "GemmaConfig", dict(gqa, head_dim=8)), ("GPTNeoX", "GPTNeoXConfig", plain)):
            if hasattr(t, config):
                yield (f"{name}ForCausalLM", getattr(t, config)(**keys), "dense" if name == "GPTNeoX" else "o_proj",
                       f"{name}Attention")
        yield ("GPT2LMHeadModel", t.GPT2Config(vocab_size=64, n_embd=48, n_layer=2, n_head=6, n_positions=128), "c_proj",
               "GPT2Attention")
        yield ("OPTForCausalLM", t.OPTConfig(vocab_size=64, hidden_size=48, num_hidden_layers=2, num_attention_heads=6,
                                             ffn_dim=96, max_position_embeddings=128, word_embed_proj_dim=48), "out_proj",
               "OPTAttention")

    def test_families(self):
        import transformers
        for name, config, projection, owner in self.families():
            with self.subTest(name):
                torch.manual_seed(3)
                model = getattr(transformers, name)(config).eval()
                classes = tuple({type(m) for m in model.modules() if type(m).__name__ in (
                    owner, owner.replace("Attention", "SdpaAttention"))})
                path, metadata, arrays = self.recorded(model, name, wo=True)
                for layer, wanted in enumerate(attention_outputs(model, TOKENS, projection, classes)):
                    self.assert_close(recomputed(arrays, metadata, layer), wanted, 1e-5)
                self.accepted(path)

    def test_the_program_on_a_saved_model(self):
        import transformers
        torch.manual_seed(3)
        folder = os.path.join(SCRATCH, "saved-llama")
        config = transformers.LlamaConfig(vocab_size=64, hidden_size=48, num_hidden_layers=2, num_attention_heads=6,
                                          num_key_value_heads=2, intermediate_size=96, max_position_embeddings=128)
        transformers.LlamaForCausalLM(config).save_pretrained(folder)
        ids = os.path.join(SCRATCH, "ids.json")
        with open(ids, "w", encoding="utf-8") as file:
            json.dump(TOKENS, file)
        path = self.path("trace")
        self.assertEqual(record_hf.main([folder, "-o", path, "--token-ids", ids, "--tokens", "48", "--decode", "8",
                                         "--generate", "--layers", "1", "--quiet"]), 0)
        info = self.accepted(path)
        self.assertEqual(info["prompt_tokens"], 40)


if __name__ == "__main__":
    PROGRAM, SCRATCH = sys.argv[1:3]
    os.makedirs(SCRATCH, exist_ok=True)
    for old in os.listdir(SCRATCH):
        if old.endswith(".safetensors"):
            os.remove(os.path.join(SCRATCH, old))
    if "Transformers" in sys.argv[3:]:
        skip_unless("transformers")
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=2)
