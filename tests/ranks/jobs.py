"""Jobs of several ranks, as tests start and watch them.

How fast a job is, or a test, decides nothing: answers that are to be interrupted have no end that
would ever come, and no rank counts as stopped for want of a core but where one is stopped.
"""
import atexit
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

LIMIT = 240.0  # seconds for anything to happen
MEGALITH = sys.argv[1]
MODEL_ARGUMENTS = ["run", "-p", "And the king said unto", "-n", "40"]
LONG_PROMPT = "And the king said unto him. " * 400
# Environment of jobs with a rank that is stopped: noticed after so many seconds. Without it, never.
STOPS = {"MEGALITH_RANKS_PATIENCE": "6"}
# Positions, and tokens of an answer: hours.
ENDLESS_CONTEXT = 1 << 18
ENDLESS_TOKENS = 200_000


def is_hydra():
    version = subprocess.run(["mpirun", "--version"], capture_output=True, text=True, check=False)
    return "HYDRA" in version.stdout


class Failed(Exception):
    """A case that did not go as it should."""


def check(condition, message):
    if not condition:
        raise Failed(message)


def make_endless_model():
    """The embedded model with a context that no test fills."""
    folder = tempfile.mkdtemp(prefix="megalith-ranks-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = os.path.join(folder, "endless")
    shutil.copytree(os.path.join(os.path.dirname(os.path.abspath(__file__)),
                                 "../../models/k3-nano"), path)
    with open(os.path.join(path, "config.json"), "r+", encoding="utf-8") as file:
        text = file.read()
        longer = re.sub(r'("max_position_embeddings": )\d+', rf"\g<1>{ENDLESS_CONTEXT}", text)
        assert longer != text
        file.seek(0)
        file.write(longer)
        file.truncate()
    return path


ENDLESS_MODEL = make_endless_model()


def endless(prompt="And the", rows_per_step=4, tokens=ENDLESS_TOKENS):
    """Arguments of a run that ends only if it is ended; or of the beginning of one."""
    return ["run", ENDLESS_MODEL, "-p", prompt, "-n", str(tokens), "--ignore-eos",
            "--rows-per-step", str(rows_per_step)]


class Job:
    """mpirun with what it starts; ranks are found by a variable that only they have."""

    count = 0

    def __init__(self, command, variables=None):
        Job.count += 1
        self.token = f"{os.getpid()}.{Job.count}"
        environment = dict(os.environ, MEGALITH_RANKS_TEST=self.token, MEGALITH_RANKS_PATIENCE="0")
        # Open MPI refuses to run as root, or with more ranks than cores, unless told.
        environment.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
                           OMPI_MCA_rmaps_base_oversubscribe="1",
                           PRTE_MCA_rmaps_default_mapping_policy=":oversubscribe")
        environment.update(variables or {})
        # None: the program's default.
        environment = {name: value for name, value in environment.items() if value is not None}
        self.command = command
        self.out = tempfile.TemporaryFile()
        self.err = tempfile.TemporaryFile()
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=self.out,
                                        stderr=self.err, env=environment, start_new_session=True)

    @staticmethod
    def read(file):
        size = os.fstat(file.fileno()).st_size
        return os.pread(file.fileno(), size, 0).decode("utf-8", "replace")

    def stdout(self):
        return self.read(self.out)

    def stderr(self):
        return self.read(self.err)

    def processes(self):
        """Process ids of the job's programs, by rank; those without one by -1."""
        found = {}
        for name in os.listdir("/proc"):
            if not name.isdigit() or int(name) == self.process.pid:
                continue
            try:
                with open(f"/proc/{name}/environ", "rb") as file:
                    variables = file.read().decode("utf-8", "replace").split("\0")
            except OSError:
                continue
            if f"MEGALITH_RANKS_TEST={self.token}" not in variables:
                continue
            rank = -1
            for variable in variables:
                key, _, value = variable.partition("=")
                if key in ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK") and value.isdigit():
                    rank = int(value)
            found.setdefault(rank, []).append(int(name))
        return found

    def await_that(self, condition, what):
        end = time.monotonic() + LIMIT
        while not condition():
            check(self.process.poll() is None, f"ended with {self.process.poll()} before {what}")
            check(time.monotonic() < end, f"no {what} within {LIMIT} s")
            time.sleep(0.02)

    def send(self, number, rank=None):
        """A signal to one rank, or to all."""
        processes = self.processes()
        ranks = [rank] if rank is not None else [each for each in processes if each >= 0]
        for each in ranks:
            check(each in processes, f"there is no process of rank {each}")
            for process in processes[each]:
                os.kill(process, number)

    def wait(self):
        """The exit code; nobody may be left."""
        try:
            code = self.process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            raise Failed(f"has not ended within {LIMIT} s") from None
        end = time.monotonic() + LIMIT
        while self.processes():
            check(time.monotonic() < end, f"left behind: {self.processes()}")
            time.sleep(0.05)
        return code

    def stop(self):
        """Whatever happened, nothing stays."""
        for processes in self.processes().values():
            for process in processes:
                try:
                    os.kill(process, signal.SIGKILL)
                except OSError:
                    pass
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


def mpirun(count, arguments, launcher=()):
    return ["mpirun", *launcher, "-n", str(count), MEGALITH, *arguments]


def run_alone(arguments):
    done = subprocess.run([MEGALITH, *arguments], capture_output=True, text=True, timeout=LIMIT,
                          check=True, stdin=subprocess.DEVNULL)
    return done.stdout


def write_wide_model(path):
    """A random model that 32 ranks divide; returns the path."""
    subprocess.run([MEGALITH, "synth", path, "--preset", "k3-tiny", "--hidden", "512", "--vocab",
                    "512", "--heads", "32", "--head-dim", "16", "--experts", "33",
                    "--experts-per-token", "4", "--expert-width", "512", "--latent", "512",
                    "--dense-width", "768", "--layer-kinds", "KKM", "--set",
                    f"max_position_embeddings={1 << 16}", "--quiet"],
                   check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return path


class Server(Job):
    """megalith serve on ranks, or on anything else that `command` starts."""

    def __init__(self, command, variables=None):
        super().__init__(command, variables)
        self.await_that(lambda: "ready: " in self.stderr(), "server")
        line = next(each for each in self.stderr().splitlines() if "listening on " in each)
        self.url = line.split("listening on ")[1].split(",")[0]

    def health(self):
        """Status of /health; 0 if nobody answers."""
        try:
            with urllib.request.urlopen(self.url + "/health", timeout=LIMIT) as answer:
                return answer.status
        except urllib.error.HTTPError as error:
            return error.code
        except (OSError, ValueError):
            return 0

    def begin_answer(self):
        """A long answer on its way; returns what it brings, and its thread."""
        pieces = []

        def ask():
            body = json.dumps({"prompt": "And the", "max_tokens": ENDLESS_TOKENS, "stream": True,
                               "ignore_eos": True}).encode()
            request = urllib.request.Request(self.url + "/v1/completions", body,
                                             {"Content-Type": "application/json"})
            try:
                with urllib.request.urlopen(request, timeout=LIMIT) as answer:
                    for line in answer:
                        pieces.append(line.decode("utf-8", "replace"))
            except (OSError, ValueError) as error:
                pieces.append(f"error: {error}")

        thread = threading.Thread(target=ask)
        thread.start()
        return pieces, thread

    def complete(self):
        body = json.dumps({"prompt": "And the king", "max_tokens": 20, "temperature": 0}).encode()
        request = urllib.request.Request(self.url + "/v1/completions", body,
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=LIMIT) as answer:
            return json.load(answer)["choices"][0]["text"]


SERVE = ["serve", "--port", "0", "--sequences", "2", "--context", "4096", "--draft", "off"]
SERVE_ENDLESS = ["serve", ENDLESS_MODEL, "--port", "0", "--sequences", "2", "--context",
                 str(ENDLESS_CONTEXT), "--draft", "off"]
# With it, whoever dies is not the launcher's matter but the job's.
NO_CLEAN_UP = ["-disable-auto-cleanup"] if is_hydra() else []


def with_job(job, body):
    try:
        body(job)
    except Failed as failure:
        raise Failed(f"{failure}\n  {' '.join(job.command)[:200]}\n  stderr: "
                     f"{job.stderr()[-3000:]}") from None
    finally:
        job.stop()


def run_cases(title, names):
    """Runs the functions case_*, or those whose name contains an argument; the exit code."""
    wanted = sys.argv[2:]
    cases = {name[5:]: body for name, body in names.items() if name.startswith("case_")}
    failed = []
    num_run = 0
    for name, body in cases.items():
        if wanted and not any(each in name for each in wanted):
            continue
        num_run += 1
        start = time.monotonic()
        try:
            body()
            print(f"ok      {name} ({time.monotonic() - start:.1f} s)", flush=True)
        except Failed as failure:
            failed.append(name)
            print(f"FAILED  {name}: {failure}", flush=True)
    print(f"{title}: {num_run - len(failed)} of {num_run} cases passed")
    return 1 if failed or num_run == 0 else 0
