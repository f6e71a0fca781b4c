# The service and what it needs to serve, nothing else: docker build -t undercurrent .
FROM python:3.11-slim AS build
WORKDIR /build
RUN python -m venv --without-pip /venv
COPY . .
# Only what `dependencies` of pyproject.toml asks for, in the versions of the lock. No simulator is here (.dockerignore),
# so its command goes; and the libraries' own tests are a tenth of the image.
RUN pip --python /venv/bin/python install --no-cache-dir --disable-pip-version-check --constraint requirements.lock . \
    && rm /venv/bin/undercurrent-sim \
    && find /venv -type d -name tests -prune -exec rm -rf {} +

FROM python:3.11-slim
COPY --from=build /venv /venv
# The compiler reads its cache only where it could also write, so the folder belongs to the user.
ENV PATH=/venv/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    NUMBA_CACHE_DIR=/var/cache/undercurrent \
    UNDERCURRENT_HOST=0.0.0.0 \
    UNDERCURRENT_PORT=8000 \
    UNDERCURRENT_DATABASE_URL=sqlite:////data/undercurrent.db
RUN useradd --system --uid 10001 --no-create-home --shell /usr/sbin/nologin undercurrent \
    && install --directory --owner undercurrent /data /var/cache/undercurrent
USER undercurrent
WORKDIR /data
RUN ["python", "-m", "service.engine.warm_up"]
VOLUME /data
EXPOSE 8000
STOPSIGNAL SIGTERM
# On another kind of CPU than the image was built on, the first start compiles the kernels again: a minute or two.
HEALTHCHECK --interval=10s --timeout=5s --start-period=180s --retries=3 \
    CMD ["python", "-c", "import os, urllib.request as web; web.urlopen(f\"http://127.0.0.1:{os.environ['UNDERCURRENT_PORT']}/healthz\", timeout=4)"]
ENTRYPOINT ["undercurrent"]
CMD ["serve"]
