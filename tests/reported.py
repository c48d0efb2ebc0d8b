"""Messages of the forms that people report, each with what its numbers and its traceback allow to say: cause and phase, by hand.

Forms are of PyTorch 0.4 to 2.13, NCCL, cuBLAS and its kin, vLLM, SGLang, accelerate, Slurm, Kubernetes, Ray, the kernel. Where one is of
a public thread, its address stands beside it; numbers and frames are that thread's, or made up to be of its kind.
"""

from typing import NamedTuple

PACKAGES = "/opt/conda/lib/python3.11/site-packages/"


class Case(NamedTuple):
    """`text`; the `cause` that must come first; the `phase`, "" where nothing tells; a word of the advice that must stand there."""

    text: str
    cause: str
    phase: str = ""
    advice: str = ""


def traceback(*frames, prefix=""):
    """Frames as Python prints them: "file:line function text", packages' files from `torch/` or the like on."""
    lines = [f"{prefix}Traceback (most recent call last):"]
    for said in frames:
        place, function, *code = said.split(" ", 2)
        file, line = place.rsplit(":", 1)
        packaged = "/" in file and not file.startswith("/")
        lines.append(f'{prefix}  File "{PACKAGES * packaged}{file}", line {line}, in {function}')
        lines += [f"{prefix}    {code[0]}"] if code else []
    return "\n".join(lines) + "\n"


def two(asked="2.00 GiB", capacity="79.10 GiB", free="1.00 GiB", process="77.90 GiB", allocated="76.50 GiB", cached="600.00 MiB", more="",
        device="CUDA"):  # fmt: skip
    return (
        f"torch.OutOfMemoryError: {device} out of memory. Tried to allocate {asked}. GPU 0 has a total capacity of {capacity} of which {free} "
        f"is free. {more}Including non-PyTorch memory, this process has {process} memory in use. Of the allocated memory {allocated} is "
        f"allocated by PyTorch, and {cached} is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation."
    )


def one(asked, capacity, allocated, free, reserved, device="GPU 0"):
    return (f"RuntimeError: CUDA out of memory. Tried to allocate {asked} ({device}; {capacity} total capacity; {allocated} already allocated; "
            f"{free} free; {reserved} reserved in total by PyTorch)")  # fmt: skip


TRAIN = ["train.py:210 <module> main()", "train.py:183 main train(model, loader)"]
TRAINER = ["train.py:90 main trainer.train()", "transformers/trainer.py:2240 train return inner_training_loop("]
CALL = "torch/nn/modules/module.py:1789 _call_impl return forward_call(*args, **kwargs)"
LLAMA = [CALL, "transformers/models/llama/modeling_llama.py:480 forward outputs = self.model("]
STEP = "torch/optim/optimizer.py:530 wrapper out = func(*args, **kwargs)"
BACK = [
    "torch/_tensor.py:648 backward torch.autograd.backward(",
    "torch/autograd/__init__.py:353 backward _engine_run_backward(",
]
FULL = two()

CASES = {
    # where in a step
    "forward": Case(traceback(*TRAIN, "train.py:61 train out = model(batch)", CALL, "model.py:44 forward x = self.up(x)",
                              "torch/nn/modules/linear.py:134 forward return F.linear(input, self.weight, self.bias)") + FULL, "need", "forward", "micro-batch"),
    "transformers' forward": Case(traceback(*TRAINER, "transformers/trainer.py:3700 training_step loss = self.compute_loss(model, inputs)", *LLAMA,
                                            "transformers/models/llama/modeling_llama.py:160 forward down_proj = self.down_proj(") + FULL, "need", "forward", "checkpointing"),
    "loss": Case(traceback(*TRAINER, *LLAMA, "transformers/loss/loss_utils.py:60 ForCausalLMLoss loss = fixed_cross_entropy(",
                           "transformers/loss/loss_utils.py:35 fixed_cross_entropy loss = nn.functional.cross_entropy(",
                           "torch/nn/functional.py:3462 cross_entropy return torch._C._nn.cross_entropy_loss(") + two("7.83 GiB", free="3.10 GiB"), "need", "forward", "chunked"),
    "logits in fp32": Case(traceback(*TRAINER, *LLAMA, "transformers/loss/loss_utils.py:55 ForCausalLMLoss logits = logits.float()") + two("4.00 GiB"), "need", "forward", "chunked"),
    "backward": Case(traceback(*TRAIN, "train.py:66 train loss.backward()", *BACK) + FULL, "need", "backward", "micro-batch"),
    "accelerate's backward": Case(traceback(*TRAINER, "transformers/trainer.py:3740 training_step self.accelerator.backward(loss, **kwargs)",
                                            "accelerate/accelerator.py:2240 backward loss.backward(**kwargs)", *BACK, "torch/autograd/graph.py:824 _engine_run_backward return "
                                            "Variable._execution_engine.run_backward(") + FULL, "need", "backward", "micro-batch"),
    "recomputed in backward": Case(traceback(*TRAIN, "train.py:66 train loss.backward()", *BACK, "torch/utils/checkpoint.py:1120 unpack_hook frame.recompute_fn(*args)",
                                             "model.py:44 forward x = self.up(x)") + FULL, "need", "backward"),
    "deepspeed's backward": Case(traceback(*TRAIN, "train.py:66 train engine.backward(loss)", "deepspeed/runtime/engine.py:2020 backward self.optimizer.backward(loss)",
                                           "deepspeed/runtime/zero/stage3.py:2250 backward self.loss_scaler.backward(loss.float())", *BACK) + FULL, "need", "backward"),
    "states": Case(traceback(*TRAIN, "train.py:70 train optimizer.step()", STEP, "torch/optim/adam.py:178 _init_group state['exp_avg'] = torch.zeros_like(") + FULL, "need", "optimizer", "8 bits"),
    "foreach": Case(traceback(*TRAIN, "train.py:70 train optimizer.step()", STEP, "torch/optim/adam.py:790 _multi_tensor_adam exp_avg_sq_sqrt = torch._foreach_sqrt(")
                    + two("96.00 MiB", "6.00 GiB", "26.00 MiB", "5.97 GiB", "5.46 GiB", "749.00 KiB"), "need", "optimizer", "foreach=False"),
    "bitsandbytes": Case(traceback(*TRAINER, "bitsandbytes/optim/optimizer.py:290 step self.init_state(group, p, gindex, pindex)") + FULL, "need", "optimizer"),
    "zero-3's step": Case(traceback(*TRAIN, "deepspeed/runtime/engine.py:2170 _take_model_step self.optimizer.step()", "deepspeed/runtime/zero/stage3.py:947 _optimizer_step "
                                    "self.optimizer.step()", "torch/optim/optimizer.py:385 wrapper out = func(*args, **kwargs)")
                          + "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.39 GiB. GPU 1 has a total capacity of 79.32 GiB of which 2.40 GiB is free. "
                          "Process 105400 has 76.92 GiB memory in use. Of the allocated memory 73.28 GiB is allocated by PyTorch, and 1.59 GiB is reserved by PyTorch but "
                          "unallocated.", "fragmentation", "optimizer"),  # hiyouga/LlamaFactory#7532: 1.59 + 2.40 are enough for 3.39
    "clipping": Case(traceback(*TRAINER, "accelerate/accelerator.py:2370 clip_grad_norm_ return torch.nn.utils.clip_grad_norm_(", "torch/nn/utils/clip_grad.py:110 _get_total_norm "
                               "norms.extend(torch._foreach_norm(") + FULL, "need", "optimizer"),
    "PyTorch 1's optimizer": Case(traceback(*TRAIN, "train.py:70 train optimizer.step()", "torch/optim/adamw.py:110 step state['exp_avg_sq'] = torch.zeros_like(p)")
                                  + one("20.00 MiB", "14.76 GiB", "13.60 GiB", "5.75 MiB", "13.61 GiB"), "need", "optimizer"),
    # collectives
    "FSDP gathers": Case(traceback(*TRAIN, "train.py:61 train out = model(batch)", "torch/distributed/fsdp/fully_sharded_data_parallel.py:849 forward args, kwargs = _pre_forward(",
                                   "torch/distributed/fsdp/_runtime_utils.py:420 _unshard handle.unshard()", "torch/distributed/fsdp/_flat_param.py:1250 _alloc_padded_unsharded_flat_param "
                                   "_alloc_storage(") + FULL, "need", "collective", "smaller units"),
    "FSDP2 gathers": Case(traceback(*TRAIN, "train.py:66 train loss.backward()", *BACK, "torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py:300 unshard self._all_gather_result = "
                                    "foreach_all_gather(", "torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py:180 foreach_all_gather all_gather_input = torch.empty(") + FULL, "need", "collective"),
    "DDP begins": Case(traceback(*TRAIN, "train.py:30 main model = DDP(model)", "torch/nn/parallel/distributed.py:860 __init__ _sync_module_states(",
                                 "torch/distributed/utils.py:290 _sync_module_states _sync_params_and_buffers(") + FULL, "need", "collective"),
    "no_sync": Case(traceback(*TRAIN, "train.py:60 train with model.no_sync():", "train.py:66 train loss.backward()", *BACK) + FULL, "need", "backward", "no no_sync"),  # pytorch/pytorch#160320
    # phases beside training
    "evaluation": Case(traceback(*TRAINER, "transformers/trainer.py:3100 evaluate output = eval_loop(", "transformers/trainer.py:3290 evaluation_loop losses, logits, labels = "
                                 "self.prediction_step(", *LLAMA) + FULL, "need", "evaluation", "eval_accumulation_steps"),
    "kept logits": Case("OutOfMemoryError                          Traceback (most recent call last)\n<ipython-input-13-941869335d74> in <cell line: 1>()\n----> 1 predictions = "
                        "trainer.predict(test_dataset)\n      2 \n\n/usr/local/lib/python3.10/dist-packages/transformers/trainer.py in evaluation_loop(self, dataloader)\n   3139\n-> 3140 "
                        "preds_host = nested_concat(preds_host, logits, padding_index=-100)\n\n" + FULL, "need", "evaluation", "preprocess_logits"),  # MAGICS-LAB/DNABERT_2#134
    "a notebook's": Case("OutOfMemoryError                          Traceback (most recent call last)\nCell In[21], line 2\n      1 # eval\n----> 2 eval_metrics = "
                         "trainer.evaluate(metric_key_prefix='eval')\n\nFile /usr/local/lib/python3.8/dist-packages/transformers/trainer.py:2113, in Trainer.evaluate(self)\n-> 2113 output"
                         " = eval_loop(\n\n" + FULL, "need", "evaluation"),  # NVIDIA-Merlin/Transformers4Rec#693
    "lightning validates": Case(traceback("fit.py:12 <module> trainer.fit(model)", "lightning/pytorch/loops/evaluation_loop.py:130 run self._evaluation_step(batch)",
                                          "model.py:80 validation_step logits = self(batch)", CALL) + FULL, "need", "evaluation"),
    "saves": Case(traceback("pretrain.py:748 <module> main()", "pretrain.py:729 main FSDPCheckpoint.fsdp_save_ckpt(", "fsdp_utils.py:109 fsdp_save_ckpt ema_state_dict = "
                            "ema_model.state_dict()", "torch/nn/modules/module.py:2215 state_dict hook(self, prefix, keep_vars)",
                            "torch/distributed/fsdp/_state_dict_utils.py:303 _full_pre_state_dict_hook _common_unshard_pre_state_dict_hook(", prefix="[rank7]: ") + FULL, "need", "save", "sharded"),  # ByteDance-Seed/Bagel#157
    "saves, by a warning": Case("UserWarning: Failed to clone() tensor with name lm_head.weight. This may mean that this state_dict entry could point to invalid memory regions after "
                                "returning from state_dict() call if this parameter is managed by FSDP. Error: CUDA out of memory. Tried to allocate 982.00 MiB (GPU 2; 79.35 GiB total "
                                "capacity; 77.16 GiB already allocated; 272.19 MiB free; 77.16 GiB reserved in total by PyTorch)", "need", "save", "rank 0"),  # GanjinZero/RRHF#30
    "trainer saves": Case(traceback(*TRAINER, "transformers/trainer.py:3050 _save_checkpoint self.save_model(output_dir)", "accelerate/accelerator.py:3480 get_state_dict state_dict = "
                                    "model.state_dict()", "torch/distributed/fsdp/_state_dict_utils.py:303 _full_pre_state_dict_hook unshard(") + FULL, "need", "save"),
    "lightning saves": Case(traceback("fit.py:12 <module> trainer.fit(model)", "lightning/pytorch/trainer/trainer.py:1370 save_checkpoint checkpoint = self.dump_checkpoint()",
                                      "lightning/pytorch/strategies/fsdp.py:570 lightning_module_state_dict return self.model.state_dict()") + FULL, "need", "save"),  # Lightning-AI#20312
    "resumes": Case(traceback("train.py:158 <module> checkpoint = torch.load(ckpt_path, map_location=device)", "torch/serialization.py:1530 load return _load(",
                              "torch/serialization.py:390 _cuda_deserialize return obj.cuda(device)") + FULL, "need", "load", "map_location"),  # karpathy/nanoGPT#158
    "trainer resumes": Case(traceback(*TRAINER, "transformers/trainer.py:3400 _load_optimizer_and_scheduler self.optimizer.load_state_dict(", "torch/optim/optimizer.py:880 load_state_dict "
                                      "state_dict = deepcopy(state_dict)") + FULL, "need", "load", "map_location"),  # huggingface/transformers#22123
    "an old one resumes": Case(traceback("tools/run.py:94 <module> run()", "checkpoint.py:242 restore self.trainer.optimizer.load_state_dict(ckpt['optimizer'])",
                                         "torch/optim/optimizer.py:103 load_state_dict state_dict = deepcopy(state_dict)")
                               + "RuntimeError: CUDA out of memory. Tried to allocate 39.12 MiB (GPU 0; 10.76 GiB total capacity; 9.71 GiB already allocated; 5.56 MiB free; 10.13 MiB "
                               "cached)", "need", "load"),  # facebookresearch/mmf#185
    "loads": Case(traceback("serve.py:9 <module> model = AutoModelForCausalLM.from_pretrained(name, device_map=0)", "transformers/modeling_utils.py:4900 from_pretrained "
                            "_load_pretrained_model(", "transformers/modeling_utils.py:780 _load_state_dict_into_meta_model param = param.to(device)") + FULL, "need", "load", "auto"),
    "a quantized one loads": Case(traceback("qlora.py:30 <module> model = AutoModelForCausalLM.from_pretrained(name, quantization_config=q)", "transformers/quantizers/quantizer_bnb_4bit.py:"
                                            "240 create_quantized_param new_value = bnb.nn.Params4bit(value).to(device)", "bitsandbytes/nn/modules.py:330 to return self._quantize(device)")
                                  + two("224.00 MiB", "23.65 GiB", "60.00 MiB", "23.40 GiB", "23.00 GiB", "90.00 MiB"), "need", "load"),
    "moves": Case(traceback("flux.py:11 <module> pipe.to('cuda')", "diffusers/pipelines/pipeline_utils.py:540 to module.to(device, dtype)", "torch/nn/modules/module.py:1378 to return "
                            "self._apply(convert)", "torch/nn/modules/module.py:930 _apply module._apply(fn)") + two("54.00 MiB", "47.40 GiB", "40.00 MiB", "47.20 GiB", "46.80 GiB", "9.00 MiB"), "need", "load"),  # huggingface/diffusers#10145
    "generates": Case(traceback("grpo.py:40 <module> trainer.train()", "trl/trainer/grpo_trainer.py:1300 _generate_and_score_completions completions = unwrapped.generate(",
                                "transformers/generation/utils.py:2600 generate result = decoding_method(", *LLAMA) + FULL, "need", "generation", "fewer sequences"),
    "DPO": Case(traceback(*TRAINER, "trl/trainer/dpo_trainer.py:1480 concatenated_forward outputs = model(input_ids, **model_kwargs)", *LLAMA)
                + two("18.55 GiB", free="10.00 GiB", process="68.60 GiB", allocated="67.00 GiB"), "need", "forward", "precompute_ref_log_probs"),  # huggingface/trl#3168
    "an engine wakes": Case(traceback(*TRAINER, "trl/trainer/grpo_trainer.py:1210 _generate self.llm.wake_up(tags=['kv_cache'])", "vllm/device_allocator/cumem.py:220 wake_up create_and_map(handle)")
                            + "RuntimeError: CUDA Error: out of memory at /workspace/csrc/cumem_allocator.cpp:62", "library", "generation", "sleep"),
    # whose it is
    "varied lengths": Case(traceback(*TRAIN, "train.py:66 train loss.backward()", *BACK) + two("3.00 GiB", "178.35 GiB", "0.90 GiB", "177.00 GiB", "18.70 GiB", "157.80 GiB"), "fragmentation", "backward", "expandable"),  # NVIDIA-NeMo/RL#3476
    "another's": Case(two("2.00 GiB", "79.10 GiB", "1.00 GiB", "20.80 GiB", "20.00 GiB", "0.20 GiB", "Process 4242 has 57.00 GiB memory in use. "), "others", "", "nvidia-smi"),
    "others, not enough": Case(two("20.00 GiB", "79.10 GiB", "1.00 GiB", "76.00 GiB", "75.00 GiB", "0.20 GiB", "Process 4242 has 1.80 GiB memory in use. "), "need"),
    "communicators": Case(two("2.00 GiB", "79.10 GiB", "0.50 GiB", "78.40 GiB", "66.00 GiB", "0.30 GiB"), "outside", "", "process groups"),  # verl-project/verl#6266
    "a share": Case(two("2.00 GiB", "79.10 GiB", "30.00 GiB", "40.00 GiB", "38.00 GiB", "1.00 GiB", "40.00 GiB allowed; "), "limit", "", "fraction"),
    "refused": Case(two("2.00 GiB", "79.10 GiB", "30.00 GiB", "40.00 GiB", "38.00 GiB", "1.00 GiB"), "refused"),
    "Windows": Case(two("1002.00 MiB", "8.00 GiB", "0 bytes", "14.20 GiB", "13.98 GiB", "129.48 MiB"), "shared", "", "fallback"),
    "a square": Case(traceback(*TRAIN, CALL, "model.py:30 forward scores = q @ k.transpose(-1, -2)") + two("130206.04 GiB", "23.56 GiB", "16.57 GiB", "6.97 GiB", "5.45 GiB", "1.17 GiB"), "tensor", "forward", "shape"),
    "an exabyte": Case(traceback("train.py:144 train save_model_and_optimizer_sharded(model, rank)", "torch/distributed/_shard/sharded_tensor/api.py:360 gather dist.gather(")
                       + "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate more than 1EB memory.", "tensor"),  # meta-llama/llama-cookbook#45
    "ROCm": Case(two(device="HIP"), "need"),
    "XPU": Case(two(device="XPU"), "need"),
    "Ascend": Case(one("1.74 GiB", "60.97 GiB", "58.66 GiB", "404.42 MiB", "59.42 GiB", "NPU 0").replace("CUDA", "NPU"), "need"),
    "MPS": Case("RuntimeError: MPS backend out of memory (MPS allocated: 16.91 GiB, other allocations: 2.77 MiB, max allowed: 18.13 GiB). Tried to allocate 1.28 GiB on private pool.", "limit", "", "WATERMARK"),
    "before numbers": Case("RuntimeError: cuda runtime error (2) : out of memory at /pytorch/aten/src/THC/generic/THCStorage.cu:58", "need"),
    "preemptively": Case("CUDA out of memory. Allocation was preemptively rejected because it would exceed per_process_memory_fraction limit. Requested size: 2.00 GiB", "limit"),
    # what else people asked about
    "LoRA at long context": Case(traceback(*TRAINER, *LLAMA, "peft/tuners/lora/layer.py:760 forward result = result + lora_B(lora_A(dropout(x))) * scaling") + FULL, "need", "forward",
                                 "checkpointing"),  # huggingface/peft#1514
    "checkpointing that saves nothing": Case("UserWarning: None of the inputs have requires_grad=True. Gradients will be None\n" + traceback(*TRAINER, *LLAMA) + FULL, "need", "forward",
                                             "enable_input_require_grads"),  # huggingface/peft#1142
    "one large image": Case(traceback(*TRAINER, CALL, "transformers/models/qwen2_vl/modeling_qwen2_vl.py:390 forward attn_weights = torch.matmul(q, k.transpose(1, 2))")
                            + two("27.38 GiB", free="21.00 GiB", process="57.00 GiB", allocated="55.50 GiB"), "need", "forward"),  # 2U1/Qwen-VL-Series-Finetune#88
    "compiled": Case(traceback(*TRAIN, "train.py:61 train out = model(batch)", "torch/_dynamo/eval_frame.py:660 _fn return fn(*args, **kwargs)", "/scratch/torchinductor_me/ab/cab.py:88 call "
                               "buf0 = empty_strided_cuda((8, 1024, 50304), (51511296, 50304, 1), torch.float32)") + FULL, "need", "forward"),  # pytorch/pytorch#122512
    "fp8": Case(traceback(*TRAIN, CALL, "transformer_engine/pytorch/module/linear.py:1200 forward out = linear_fn(*args)") + FULL, "need", "forward"),  # NVIDIA/TransformerEngine#257
    "Muon": Case(traceback(*TRAIN, "train.py:70 train optimizer.step()", STEP, "muon.py:41 zeropower_via_newtonschulz5 A = X @ X.mT") + FULL, "need", "optimizer", "shard"),  # pytorch/torchtitan#2494
    "experts": Case(traceback(*TRAIN, CALL, "megablocks/layers/dmoe.py:140 sparse_forward x = ops.padded_gather(") + FULL, "need", "forward"),  # databricks/megablocks#154
    "replayed routing": Case("(raylet) node_manager.cc: 2 Workers killed due to memory pressure (OOM)\nray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.", "host"),  # THUDM/slime#2384
    # libraries
    "cuBLAS": Case(traceback(*TRAIN, CALL, "torch/nn/modules/linear.py:134 forward return F.linear(") + "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", "library", "forward", "room"),
    "cuDNN": Case("RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED", "library"),
    "cuSOLVER": Case("torch._C._LinAlgError: cusolver error: CUSOLVER_STATUS_ALLOC_FAILED, when calling `cusolverDnCreate(handle)`", "library"),
    "cuFFT": Case("RuntimeError: cuFFT error: CUFFT_ALLOC_FAILED", "library"),
    "bitsandbytes' kernel": Case("Error out of memory at line 380 in file /src/csrc/pythonInterface.c", "library"),
    "NCCL": Case("node:2134736 [0] include/alloc.h:178 NCCL WARN Cuda failure 'out of memory'\nnode:2134736 [0] include/alloc.h:185 NCCL WARN Failed to CUDA calloc 6291456 bytes", "library", "", "room"),  # NVIDIA/nccl#962
    "NCCL, unhandled": Case(traceback(*TRAIN, "torch/distributed/distributed_c10d.py:2448 all_gather work = group.allgather([tensor_list], [tensor])")
                            + "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:2006, unhandled cuda error (run with NCCL_DEBUG=INFO), NCCL version 2.21.5\n"
                            "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 2 'out of memory'", "library", "collective"),
    "a context": Case("RuntimeError: CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported at some other API call", "library"),
    "an accelerator's": Case("torch.AcceleratorError: CUDA error: out of memory\nSearch for `cudaErrorMemoryAllocation' in the toolkit's documentation", "library"),
    # engines
    "no blocks": Case('ERROR 10-25 13:08:43 [core.py:708]     raise ValueError("No available memory for the cache blocks. "', "engine", "", "max-model-len"),  # vllm-project/vllm#27508
    "one request": Case("ValueError: To serve at least one request with the models's max seq len (131072), (4.11 GiB KV cache is needed, which is larger than the available KV cache memory "
                        "(4.0 GiB). Based on the available memory, the estimated maximum model length is 127776.", "engine"),  # lemonade-sdk/vllm-rocm#5
    "too few tokens": Case("ValueError: The model's max seq len (32768) is larger than the maximum number of tokens that can be stored in KV cache (7344).", "engine"),  # QwenLM/Qwen3#295
    "not free at start": Case("ValueError: Free memory on device (10.45/79.10 GiB) on startup is less than desired GPU memory utilization (0.9, 71.19 GiB). Decrease GPU memory utilization", "others", "", "nvidia-smi"),
    "SGLang": Case("RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.", "engine"),
    "profiles": Case(traceback("vllm/v1/worker/gpu_worker.py:230 determine_available_memory self.model_runner.profile_run()", "vllm/v1/worker/gpu_model_runner.py:2400 profile_run hidden = "
                               "self._dummy_run(") + FULL, "need", "generation"),
    "dispatched": Case("ValueError: Some modules are dispatched on the CPU or the disk. Make sure you have enough GPU RAM to fit the quantized model.", "need", "", "bits"),
    # the host
    "pinned": Case(traceback("deepspeed/runtime/zero/stage3.py:560 __init__ self.fp32 = torch.zeros(n).pin_memory()") + "RuntimeError: CUDA error: out of memory in pin_memory: out of memory", "host", "", "pin less"),
    "cudaHostAlloc": Case("RuntimeError: cudaHostAlloc failed: out of memory", "host", "", "pin less"),
    "loads on the host": Case(traceback("serve.py:9 <module> model = AutoModel.from_pretrained(name)", "transformers/modeling_utils.py:4900 from_pretrained _load_pretrained_model(")
                              + "RuntimeError: [enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 411041792 bytes.", "host", "load", "meta"),
    "workers": Case("RuntimeError: DataLoader worker (pid 27) is killed by signal: Bus error. It is possible that dataloader's workers are out of shared memory.", "host", "", "shm"),
    "a full share": Case('RuntimeError: unable to write to file </torch_1234_5678_0>: No space left on device (28)', "host", "", "shm"),
    "Slurm": Case("slurmstepd: error: Detected 1 oom_kill event in StepId=11300781.0. Some of the step tasks have been OOM Killed.", "host", "", "--mem"),
    "Kubernetes": Case("State: Terminated\nReason: OOMKilled\nExit Code: 137", "host", "", "limit"),
    "a launcher's": Case("exitcode : -9 (pid: 8)\ntraceback : Signal 9 (SIGKILL) received by PID 8", "host"),
    "a terminal's": Case("step 41 loss 2.31\nKilled\n$ ", "host"),
    "zsh's": Case("[1]  + 21043 killed     python train.py", "host"),
    "a shell's": Case("run.sh: line 3: 21043 Killed                  python train.py", "host"),
    "Ray": Case("ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.", "host"),
    "NumPy": Case("numpy._core._exceptions._ArrayMemoryError: Unable to allocate 4.00 GiB for an array with shape (1024, 1048577) and data type float32", "host"),
    "Jetson": Case("NvMapMemAllocInternalTagged: 1075072515 error 12\nNvMapMemHandleAlloc: error 0", "unified", "", "page cache"),
    "a Spark's kernel": Case("NVRM: nvAssertOkFailedNoLog: Assertion failed: Out of memory [NV_ERR_NO_MEMORY] (0x00000051) returned from _memdescAllocInternal", "unified", "", "page cache"),  # NVIDIA/open-gpu-kernel-modules#1358
    "exact": Case("[W CUDACachingAllocator.cpp:3933] memory allocation failed with OOM on device 0 while trying to allocate 983564288 bytes (free: 539387494, total: 1717986918).\n"
                  + traceback("t.py:8 <module> l=m(x).square().mean()", CALL, "torch/nn/modules/linear.py:134 forward return F.linear(input, self.weight, self.bias)")
                  + two("938.00 MiB", "1.60 GiB", "514.40 MiB", "1.09 GiB", "362.41 MiB", "3.59 MiB"), "need", "forward"),
}  # fmt: skip
