#!/usr/bin/env python3
"""Jobs of several ranks as a user starts them: the same text as on one rank, and one clear end
whatever happens to a rank.

  ranks_test.py MEGALITH [NAME ...]     runs all cases, or those whose name contains a NAME

Times here are limits against hanging, and no promise.
"""
import os
import random
import signal
import sys
import tempfile
import time

from jobs import (LIMIT, LONG_PROMPT, MEGALITH, MODEL_ARGUMENTS, NO_CLEAN_UP, SERVE, SERVE_ENDLESS,
                  STOPS, Job, Server, check, endless, mpirun, run_alone, run_cases, with_job,
                  write_wide_model)


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
                            (["run", "/nowhere", "-p", "x"], 3), (["run", "-q", "--ranks", "7"], 2)):
        def body(job):
            check(job.wait() == code, f"exit code {code} expected")
            lines = (job.stdout() + job.stderr()).splitlines()
            check(sum("megalith" in line for line in lines) == 1, "one message expected")
        with_job(Job(mpirun(3, arguments)), body)


def case_only_rank_0_complains():
    def body(job):
        check(job.wait() == 2, "exit code 2 expected")
        lines = [line for line in job.stderr().splitlines() if "megalith: " in line]
        check(len(lines) == 1 and "nonsense" in lines[0], "one message expected")
    with_job(Job(mpirun(3, ["tokenize", "x"]), {"MEGALITH_FORCE_ISA": "nonsense"}), body)
    command = ["mpirun", "-n", "1", MEGALITH, *MODEL_ARGUMENTS, ":", "-n", "1", "env",
               "MEGALITH_FORCE_ISA=nonsense", MEGALITH]

    def runs(job):
        check(job.wait() == 0, "exit code 0 expected")
    with_job(Job(command), runs)


def case_rank_counts_that_cannot_be():
    for command in (mpirun(5, [*MODEL_ARGUMENTS, "-q"]),
                    [MEGALITH, *MODEL_ARGUMENTS, "-q", "--ranks", "5"]):
        def body(job):
            check(job.wait() == 2, "exit code 2 expected")
            lines = [line for line in job.stderr().splitlines() if "megalith: " in line]
            check(len(lines) == 1 and "4 heads of KDA layers for 5 ranks" in lines[0]
                  and "Possible: 1 to 4 ranks" in lines[0], "one message with what is possible")
            check("weights" not in job.stderr(), "nothing read expected")
        with_job(Job(command), body)


def case_more_ranks_than_cores():
    with tempfile.TemporaryDirectory() as folder:
        model = write_wide_model(os.path.join(folder, "wide"))
        arguments = ["run", model, "--ids", "1,2,3,4,5", "-n", "4", "--ignore-eos"]
        want = run_alone(arguments)
        for command in (mpirun(32, arguments), [MEGALITH, *arguments, "--ranks", "32"]):
            def body(job):
                check(job.wait() == 0, "exit code 0 expected")
                check(job.stdout() == want, f"other tokens: {job.stdout()}")
            with_job(Job(command), body)


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
    arguments = endless()
    if moment == "prompt":
        # Should the test come late, it ends the answer.
        arguments = endless(LONG_PROMPT, rows_per_step=1)

    def body(job):
        await_moment(job, moment)
        job.send(number, rank)
        check(job.wait() != 0, "an exit code other than 0 expected")
        # The launcher may be faster than any message about a dead process, or drop it.
        if number == signal.SIGSTOP:
            check(f"rank {rank} (process" in job.stderr(), "a message that names the rank expected")
    with_job(Job(mpirun(3, arguments, launcher), STOPS if number == signal.SIGSTOP else None), body)


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
    with_job(Job(mpirun(3, endless())), body)


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
        with_job(Server(mpirun(3, SERVE, [] if stops else NO_CLEAN_UP), STOPS if stops else None),
                 body)


def case_a_busy_server_ends_its_answers():
    for number, rank in ((signal.SIGKILL, 0), (signal.SIGKILL, 2), (signal.SIGSTOP, 1)):
        def body(server):
            pieces, thread = server.begin_answer()
            server.await_that(lambda: len(pieces) > 20, "answer")
            server.send(number, rank)
            seen = set()
            end = time.monotonic() + LIMIT
            while thread.is_alive() and time.monotonic() < end:
                # One that asks while nothing has been noticed yet is answered.
                seen.add(server.health())
                time.sleep(0.02)
            check(not thread.is_alive(), "the answer goes on")
            check("[DONE]" not in "".join(pieces), "the answer ends as if it were whole")
            # MPICH's launcher kills all others at once when one is killed; then the client only
            # sees that the connection ends.
            if number == signal.SIGSTOP:
                check(any("error" in piece and f"rank {rank} (process" in piece for piece in pieces),
                      f"an error that names the rank expected: {pieces[-4:]}")
            check(server.wait() != 0, "an exit code other than 0 expected")
            check(seen <= {200, 503, 0}, f"health: {seen}")
            check(server.health() == 0, "somebody still answers")
        with_job(Server(mpirun(3, SERVE_ENDLESS, NO_CLEAN_UP),
                        STOPS if number == signal.SIGSTOP else None), body)


def case_at_random_moments():
    """From the moment at which the ranks know each other: before, a stop is the launcher's matter."""
    seed = random.randrange(1 << 30)
    choice = random.Random(seed)
    for _ in range(6):
        rank = choice.randrange(3)
        number = choice.choice([signal.SIGKILL, signal.SIGSTOP])
        delay = choice.random()
        launcher = NO_CLEAN_UP if rank > 0 and number == signal.SIGKILL else []

        def body(job):
            job.await_that(lambda: "ranks: tensor parallel" in job.stderr(), "ranks")
            time.sleep(delay)
            job.send(number, rank)
            check(job.wait() != 0, f"seed {seed}: an exit code other than 0 expected")
            if number == signal.SIGSTOP:
                check(f"rank {rank} (process" in job.stderr(),
                      f"seed {seed}: a message that names the rank expected")
        with_job(Job(mpirun(3, endless(LONG_PROMPT[:600], rows_per_step=2), launcher),
                     STOPS if number == signal.SIGSTOP else None), body)


if __name__ == "__main__":
    sys.exit(run_cases("ranks", globals()))
