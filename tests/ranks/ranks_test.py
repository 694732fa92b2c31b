#!/usr/bin/env python3
"""Jobs of several ranks as a user starts them: the same text as on one rank, and one clear end
whatever happens to a rank.

  ranks_test.py MEGALITH [NAME ...]     runs all cases, or those whose name contains a NAME

Times here are limits against hanging, and no promise.
"""
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

LIMIT = 40.0  # seconds for anything to happen
MEGALITH = sys.argv[1]
MODEL_ARGUMENTS = ["run", "-p", "And the king said unto", "-n", "40"]
ENDLESS = ["run", "-p", "And the", "-n", "4000", "--ignore-eos", "--rows-per-step", "4"]
LONG_PROMPT = "And the king said unto him. " * 400


def is_hydra():
    version = subprocess.run(["mpirun", "--version"], capture_output=True, text=True, check=False)
    return "HYDRA" in version.stdout


class Failed(Exception):
    """A case that did not go as it should."""


def check(condition, message):
    if not condition:
        raise Failed(message)


class Job:
    """mpirun with what it starts; ranks are found by a variable that only they have."""

    count = 0

    def __init__(self, command, variables=None):
        Job.count += 1
        self.token = f"{os.getpid()}.{Job.count}"
        environment = dict(os.environ, MEGALITH_RANKS_TEST=self.token)
        # Open MPI refuses to run as root, or with more ranks than cores, unless told.
        environment.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
                           OMPI_MCA_rmaps_base_oversubscribe="1",
                           PRTE_MCA_rmaps_default_mapping_policy=":oversubscribe")
        environment.update(variables or {})
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


class Server(Job):
    """megalith serve on ranks, or on anything else that `command` starts."""

    def __init__(self, command):
        super().__init__(command)
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
            body = json.dumps({"prompt": "And the", "max_tokens": 3000, "stream": True,
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


def case_the_text_of_one_rank():
    want = run_alone(MODEL_ARGUMENTS)
    for command in (mpirun(2, MODEL_ARGUMENTS), mpirun(3, MODEL_ARGUMENTS),
                    [MEGALITH, *MODEL_ARGUMENTS, "--ranks", "3"]):
        def body(job):
            check(job.wait() == 0, "exit code 0 expected")
            check(job.stdout() == want, f"another text: {job.stdout()}")
            check("error" not in job.stderr(), "a message")
        with_job(Job(command), body)


def case_rank_0_decides():
    want = run_alone(MODEL_ARGUMENTS)
    command = ["mpirun", "-n", "1", MEGALITH, *MODEL_ARGUMENTS, ":", "-n", "1", MEGALITH, "nonsense"]

    def body(job):
        check(job.wait() == 0, "exit code 0 expected")
        check(job.stdout() == want, f"another text: {job.stdout()}")
    with_job(Job(command), body)


def case_commands_without_engines():
    for arguments, code in ((["--version"], 0), (["tokenize", "/nowhere"], 3), (["nonsense"], 2),
                            (["run", "/nowhere", "-p", "x"], 3), (["run", "--ranks", "7"], 2)):
        def body(job):
            check(job.wait() == code, f"exit code {code} expected")
            lines = (job.stdout() + job.stderr()).splitlines()
            check(sum("megalith" in line for line in lines) == 1, "one message expected")
        with_job(Job(mpirun(3, arguments)), body)


def case_only_rank_0_complains():
    def body(job):
        check(job.wait() == 2, "exit code 2 expected")
        lines = job.stderr().splitlines()
        check(len(lines) == 1 and "nonsense" in lines[0], "one message expected")
    with_job(Job(mpirun(3, ["tokenize", "x"]), {"MEGALITH_FORCE_ISA": "nonsense"}), body)
    command = ["mpirun", "-n", "1", MEGALITH, *MODEL_ARGUMENTS, ":", "-n", "1", "env",
               "MEGALITH_FORCE_ISA=nonsense", MEGALITH]

    def runs(job):
        check(job.wait() == 0, "exit code 0 expected")
    with_job(Job(command), runs)


def case_no_folder_of_prefixes():
    def body(job):
        check(job.wait() == 3, "exit code 3 expected")
        check("--cache-dir" in job.stderr(), "a message expected")
    with_job(Job(mpirun(2, [*SERVE, "--cache-dir", "/tmp/never"])), body)


def await_moment(job, moment):
    if moment == "load":
        job.await_that(lambda: len([rank for rank in job.processes() if rank >= 0]) == 3, "rank")
        time.sleep(0.1)
    elif moment == "prompt":
        job.await_that(lambda: "weights " in job.stderr(), "prompt")
    else:
        job.await_that(lambda: len(job.stdout()) > 100, "answer")


def end_rank(number, rank, moment, launcher):
    arguments = ENDLESS
    if moment == "prompt":
        arguments = ["run", "-p", LONG_PROMPT, "--rows-per-step", "1"]

    def body(job):
        await_moment(job, moment)
        job.send(number, rank)
        check(job.wait() != 0, "an exit code other than 0 expected")
        # The launcher may be faster than any message about a dead process, or drop it.
        if number == signal.SIGSTOP:
            check(f"rank {rank} (process" in job.stderr(), "a message that names the rank expected")
    with_job(Job(mpirun(3, arguments, launcher)), body)


def case_killed_while_loading():
    for rank in range(3):
        end_rank(signal.SIGKILL, rank, "load", [])


def case_killed_in_the_prompt():
    for rank in range(3):
        end_rank(signal.SIGKILL, rank, "prompt", NO_CLEAN_UP)


def case_killed_in_the_answer():
    for rank in range(3):
        end_rank(signal.SIGKILL, rank, "answer", NO_CLEAN_UP if rank > 0 else [])


def case_stopped_in_the_answer():
    for rank in range(3):
        end_rank(signal.SIGSTOP, rank, "answer", [])


def case_stopped_in_the_prompt():
    end_rank(signal.SIGSTOP, 1, "prompt", [])


def case_interrupted():
    def body(job):
        await_moment(job, "answer")
        job.send(signal.SIGINT)  # as a terminal does
        check(job.wait() == 1, "exit code 1 expected")
        check("stopped after" in job.stderr(), "a message of rank 0 expected")
        check("rank 1: " not in job.stderr(), "no message of rank 1 expected")
    with_job(Job(mpirun(3, ENDLESS)), body)


def case_a_server_answers_and_ends_in_order():
    want = None
    for command in ([MEGALITH, *SERVE], [MEGALITH, *SERVE, "--ranks", "2"], mpirun(2, SERVE)):
        job = Server(command)

        def body(server):
            nonlocal want
            check(server.health() == 200, "health")
            text = server.complete()
            want = want if want is not None else text
            check(text == want, f"another text: {text}")
            if command[0] == "mpirun":
                server.send(signal.SIGTERM)
            else:
                server.process.send_signal(signal.SIGTERM)
            check(server.wait() == 0, "exit code 0 expected")
        with_job(job, body)


def case_an_idle_server_notices():
    for number, rank in ((signal.SIGKILL, 0), (signal.SIGKILL, 1), (signal.SIGKILL, 2),
                         (signal.SIGSTOP, 1)):
        stops = number == signal.SIGSTOP

        def body(server):
            check(server.health() == 200, "health")
            server.send(number, rank)
            seen = set()
            end = time.monotonic() + LIMIT
            while server.process.poll() is None and time.monotonic() < end:
                seen.add(server.health())
                time.sleep(0.02)
            check(server.wait() != 0, "an exit code other than 0 expected")
            check(seen <= {200, 503, 0}, f"health: {seen}")
            if stops:
                check(f"rank {rank} (process" in server.stderr(),
                      "a message that names the rank expected")
        with_job(Server(mpirun(3, SERVE, [] if stops else NO_CLEAN_UP)), body)


def case_a_busy_server_ends_its_answers():
    for rank in (0, 2):
        def body(server):
            pieces, thread = server.begin_answer()
            server.await_that(lambda: len(pieces) > 20, "answer")
            server.send(signal.SIGKILL, rank)
            thread.join(LIMIT)
            check(not thread.is_alive(), "the answer goes on")
            check(server.wait() != 0, "an exit code other than 0 expected")
        with_job(Server(mpirun(3, SERVE, NO_CLEAN_UP)), body)


def main():
    wanted = sys.argv[2:]
    cases = {name[5:]: body for name, body in globals().items() if name.startswith("case_")}
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
    print(f"ranks: {num_run - len(failed)} of {num_run} cases passed")
    return 1 if failed or num_run == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
