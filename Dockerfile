# Vaak with everything that its recipes need, on a CPU:
#   docker build -t vaak . && docker run --rm -v "$PWD:/work" vaak train quickstart
# For NVIDIA GPUs (then docker run --gpus all …):
#   docker build -t vaak --build-arg TORCH_INDEX=https://pypi.org/simple .
FROM python:3.11-slim

ARG TORCH=2.13.0
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN pip install --no-cache-dir --index-url ${TORCH_INDEX} torch==${TORCH}

WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src src
COPY configs configs
RUN pip install --no-cache-dir -c constraints.txt '.[accelerate,augmentation,cleaning,hf,seq2seq,tensorboard,wandb,plot,audio,lilcom,asr,umap,tts,tts-eval]'

WORKDIR /work
ENTRYPOINT ["vaak"]
CMD ["--help"]
