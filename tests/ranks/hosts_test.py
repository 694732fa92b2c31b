#!/usr/bin/env python3
"""Jobs of several ranks on several hosts, which are network namespaces of this machine: joined by
a bridge, with an address and a cable each, that can be cut. All that ranks of two hosts tell each
other goes over TCP. Needs root and MPICH's launcher.

  hosts_test.py MEGALITH [NAME ...]     runs all cases, or those whose name contains a NAME

Times here are limits against hanging, and no promise.
"""
import atexit
import ctypes
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

from jobs import (ENDLESS_TOKENS, LIMIT, MEGALITH, SERVE_ENDLESS, STOPS, Failed, Job, check, endless,
                  is_hydra, run_alone, run_cases, with_job, write_wide_model)

NUM_HOSTS = 3
PREFIX = "megalith-test-"
# MPICH over UCX: no shared memory, which processes of one kernel would find by themselves.
OVER_TCP = {"UCX_TLS": "tcp,self", "FI_PROVIDER": "tcp"}
IDS = ",".join(str(17 + 41 * i % 480) for i in range(48))


def ip(*arguments, allowed_to_fail=False):
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0 and not allowed_to_fail:
        raise Failed(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


class Network:
    """Namespaces NAME-1, NAME-2, ... and NAME-switch; nothing outside them is touched."""

    def __init__(self):
        self.name = f"{PREFIX}{os.getpid()}"
        self.switch = f"{self.name}-switch"
        atexit.register(self.remove)
        # Also after what ends a program without atexit.
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda *_: sys.exit(1))
        ip("netns", "add", self.switch)
        ip("-n", self.switch, "link", "add", "bridge", "type", "bridge")
        ip("-n", self.switch, "link", "set", "bridge", "up")
        for host in range(1, NUM_HOSTS + 1):
            ip("netns", "add", self.host(host))
            ip("-n", self.switch, "link", "add", f"port{host}", "type", "veth", "peer", "name",
               "eth0", "netns", self.host(host))
            ip("-n", self.switch, "link", "set", f"port{host}", "master", "bridge", "up")
            ip("-n", self.host(host), "addr", "add", f"{self.address(host)}/24", "dev", "eth0")
            ip("-n", self.host(host), "link", "set", "eth0", "up")
            ip("-n", self.host(host), "link", "set", "lo", "up")

    def host(self, number):
        return f"{self.name}-{number}"

    @staticmethod
    def address(number):
        return f"10.77.0.{number}"

    def cut(self, number, how):
        """'down': both ends of the cable see that there is none; 'silent': nothing passes."""
        if how == "down":
            ip("-n", self.switch, "link", "set", f"port{number}", "down")
        else:
            self.set_port(number, "disabled")

    def mend(self, number):
        ip("-n", self.switch, "link", "set", f"port{number}", "up")
        self.set_port(number, "forwarding")
        self.await_reachable(number)

    def await_reachable(self, number):
        """The kernel takes a while to notice that there is a cable."""
        end = time.monotonic() + LIMIT
        for other in range(1, NUM_HOSTS + 1):
            for here, there in ((number, other), (other, number)):
                while here != there and not self.reaches(here, there):
                    check(time.monotonic() < end, f"host {here} does not reach host {there}")
                    time.sleep(0.05)

    def reaches(self, here, there):
        def connect():
            try:
                socket.create_connection((self.address(there), 9), timeout=5.0).close()
            except ConnectionRefusedError:
                pass  # said by the other host
            except OSError:
                return False
            return True
        thread, result = on_host(here, connect)
        thread.join()
        return result == [True]

    def set_port(self, number, state):
        number_of_state = {"disabled": "0", "forwarding": "3"}[state]
        ip("netns", "exec", self.switch, "bridge", "link", "set", "dev", f"port{number}", "state",
           number_of_state)
        shown = ip("netns", "exec", self.switch, "bridge", "link", "show", "dev", f"port{number}")
        check(f"state {state}" in shown, f"port {number} is not {state}: {shown}")

    def bytes_from(self, number):
        """What the host has sent so far."""
        shown = json.loads(ip("-n", self.switch, "-s", "-j", "link", "show", f"port{number}"))
        return shown[0]["stats64"]["rx"]["bytes"]

    def processes(self, number):
        return [int(each) for each in ip("netns", "pids", self.host(number),
                                         allowed_to_fail=True).split()]

    def remove(self):
        """Ends what still runs there, too."""
        for number in range(1, NUM_HOSTS + 1):
            for process in self.processes(number):
                try:
                    os.kill(process, signal.SIGKILL)
                except OSError:
                    pass
            ip("netns", "del", self.host(number), allowed_to_fail=True)
        ip("netns", "del", self.switch, allowed_to_fail=True)

    @staticmethod
    def remove_old():
        """Those of a test that was killed."""
        for line in ip("netns", "list", allowed_to_fail=True).splitlines():
            found = re.match(f"{PREFIX}([0-9]+)-", line)
            if found and not os.path.exists(f"/proc/{found[1]}"):
                name = line.split()[0]
                for process in ip("netns", "pids", name, allowed_to_fail=True).split():
                    os.kill(int(process), signal.SIGKILL)
                ip("netns", "del", name, allowed_to_fail=True)

    def mpirun(self, ranks_of_hosts, arguments):
        """Started on host 1."""
        hosts = ",".join(f"{self.address(number)}:{ranks}"
                         for number, ranks in enumerate(ranks_of_hosts, 1) if ranks > 0)
        return ["ip", "netns", "exec", self.host(1), "mpirun", "-iface", "eth0", "-launcher", "ssh",
                "-launcher-exec", os.path.join(os.path.dirname(os.path.abspath(__file__)),
                                               "enter_host"),
                "-hosts", hosts, "-n", str(sum(ranks_of_hosts)), MEGALITH, *arguments]

    def job(self, ranks_of_hosts, arguments, variables=None):
        return Job(self.mpirun(ranks_of_hosts, arguments),
                   dict(OVER_TCP, MEGALITH_TEST_HOSTS=self.name, **(variables or {})))


NETWORK = None
FOLDER = None


def why_not():
    """Why this machine cannot run this; None if it can."""
    if os.geteuid() != 0:
        return "needs root for network namespaces"
    for program in ("ip", "bridge", "mpirun"):
        if shutil.which(program) is None:
            return f"there is no program '{program}'"
    if not is_hydra():
        return "needs MPICH's launcher (hydra)"
    probe = f"{PREFIX}{os.getpid()}-probe"
    try:
        ip("netns", "add", probe)
        ip("-n", probe, "link", "add", "bridge", "type", "bridge")
        ip("-n", probe, "link", "add", "port", "type", "veth", "peer", "name", "eth0")
    except Failed as failure:
        return f"the machine does not allow network namespaces: {failure}"
    finally:
        ip("netns", "del", probe, allowed_to_fail=True)
    return None


def wide_model():
    path = os.path.join(FOLDER, "wide")
    return path if os.path.exists(path) else write_wide_model(path)


def read(path):
    with open(path, "rb") as file:
        return file.read()


def on_host(number, body):
    """Runs it in a thread whose sockets are those of the host."""
    result = []

    def enter():
        with open(f"/run/netns/{NETWORK.host(number)}", "rb") as file:
            if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), 0x40000000) != 0:
                result.append(f"setns: {os.strerror(ctypes.get_errno())}")
                return
        result.append(body())
    thread = threading.Thread(target=enter)
    thread.start()
    return thread, result


def expect_same_logits(model, ranks_of_hosts, tensor, expert):
    alone = os.path.join(FOLDER, "alone.npy")
    shared = os.path.join(FOLDER, "shared.npy")
    arguments = ["score", *model, "--ids", IDS, "--rows-per-step", "5", "--logits-out"]
    run_alone([*arguments, alone, "--quiet"])
    layout = ["--tp", str(tensor), "--ep", str(expert)]
    description = json.loads(run_alone(["compile", *model, "--ranks", str(sum(ranks_of_hosts)),
                                        *layout, "--rows", "5", "--json", "--quiet"]))
    # Each rank puts so much in a step of a few rows, and it goes to the other hosts.
    steps = -(-len(IDS.split(",")) // 5)
    least = (steps - 1) * description["bytes"]["put"]
    before = [NETWORK.bytes_from(host) for host in range(1, NUM_HOSTS + 1)]

    def body(job):
        check(job.wait() == 0, "exit code 0 expected")
        check(f"tensor parallel {tensor} x expert parallel {expert}" in job.stderr(), "the layout")
        check(read(alone) == read(shared), "other logits than those of one rank")
        for host in range(1, NUM_HOSTS + 1):
            if ranks_of_hosts[host - 1] == 0:
                continue
            sent = NETWORK.bytes_from(host) - before[host - 1]
            check(sent >= least, f"host {host} sent {sent} bytes, at least {least} expected: "
                                 "the rest went another way")
    with_job(NETWORK.job(ranks_of_hosts, [*arguments, shared, *layout]), body)


def case_the_bits_of_one_rank():
    for ranks_of_hosts, tensor, expert in (((1, 1, 1), 3, 1), ((1, 1, 1), 1, 3), ((2, 1, 1), 2, 2)):
        expect_same_logits([], ranks_of_hosts, tensor, expert)


def case_two_ranks_on_each_host():
    for tensor, expert in ((6, 1), (2, 3), (1, 6)):
        expect_same_logits([wide_model()], (2, 2, 2), tensor, expert)


def case_the_text_of_one_rank():
    arguments = ["run", "-p", "And the king said unto", "-n", "40"]
    want = run_alone(arguments)

    def body(job):
        check(job.wait() == 0, "exit code 0 expected")
        check(job.stdout() == want, f"another text: {job.stdout()}")
        check("MPI with 2" in job.stderr(), "ranks of other hosts expected")
    with_job(NETWORK.job((1, 1, 1), arguments), body)


def expect_end_of_all_hosts(job, cut_host, start):
    """With the cable still out: the launcher and all ranks end, on the other side of the cut, too.
    The launcher's own daemons there notice only when the cable is back."""
    try:
        code = job.process.wait(LIMIT)
    except subprocess.TimeoutExpired:
        raise Failed(f"mpirun has not ended within {LIMIT} s") from None
    check(code != 0, "an exit code other than 0 expected")

    def ranks():
        return {rank: each for rank, each in job.processes().items() if rank >= 0}
    while ranks():
        check(time.monotonic() - start < LIMIT, f"ranks are left behind: {ranks()}")
        time.sleep(0.05)
    print(f"        host {cut_host}: all ranks ended {time.monotonic() - start:.1f} s after the cut",
          flush=True)
    check(re.search(r"rank \d \(process \d+\) has not run for", job.stderr()),
          "a message that names a rank expected")
    NETWORK.mend(cut_host)
    job.wait()


def case_a_cut_cable_ends_the_job_on_every_host():
    for host, how in ((3, "silent"), (2, "down"), (1, "silent")):
        def body(job):
            job.await_that(lambda: len(job.stdout()) > 100, "answer")
            NETWORK.cut(host, how)
            expect_end_of_all_hosts(job, host, time.monotonic())
        try:
            with_job(NETWORK.job((1, 1, 1), endless(), STOPS), body)
        finally:
            NETWORK.mend(host)


def case_a_cut_cable_with_two_ranks_on_each_host():
    def body(job):
        job.await_that(lambda: "prompt" in job.stdout() or len(job.stdout()) > 100, "answer")
        NETWORK.cut(2, "silent")
        expect_end_of_all_hosts(job, 2, time.monotonic())
    try:
        with_job(NETWORK.job((2, 2, 2), ["run", wide_model(), "--ids", "1,2,3", "-n", "60000",
                                         "--ignore-eos"], STOPS), body)
    finally:
        NETWORK.mend(2)


def case_a_short_interruption_is_bridged():
    # Long enough to be in the middle when the cable is cut.
    arguments = ["run", "-p", "And the king said unto", "-n", "600", "--ignore-eos", "--draft", "off"]
    want = run_alone(arguments)

    def interrupt(how, seconds, patience):
        """Whether it could be told: cutting, sleeping and mending may take longer than they should."""
        def body(job):
            job.await_that(lambda: len(job.stdout()) > 30, "answer")
            start = time.monotonic()
            NETWORK.cut(2, how)
            time.sleep(seconds)
            NETWORK.mend(2)
            took = time.monotonic() - start
            if job.wait() != 0 and patience is None and took > seconds + 1:
                return
            check(job.process.returncode == 0, "exit code 0 expected")
            check(job.stdout() == want, f"another text: {job.stdout()}")
            told.append(True)
        told = []
        try:
            with_job(NETWORK.job((1, 1, 1), arguments, {"MEGALITH_RANKS_PATIENCE": patience}), body)
        finally:
            NETWORK.mend(2)
        return bool(told)

    interrupt("silent", 2.0, "30")
    # By default, too, which a machine that is busy with other things is too slow to show.
    if not any(interrupt("down", 1.0, None) for _ in range(5)):
        print("        the default limit: not shown, this machine was too slow", flush=True)


def case_a_server_tells_its_clients():
    def health(url):
        try:
            with urllib.request.urlopen(url + "/health", timeout=LIMIT) as answer:
                return answer.status
        except urllib.error.HTTPError as error:
            return error.code
        except (OSError, ValueError):
            return 0

    def answer(url, pieces):
        request = urllib.request.Request(
            url + "/v1/completions",
            json.dumps({"prompt": "And the", "max_tokens": ENDLESS_TOKENS, "stream": True,
                        "ignore_eos": True}).encode(), {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=LIMIT) as response:
                for line in response:
                    pieces.append(line.decode("utf-8", "replace"))
        except (OSError, ValueError) as error:
            pieces.append(f"error: {error}")

    def body(job):
        job.await_that(lambda: "ready: " in job.stderr(), "server")
        line = next(each for each in job.stderr().splitlines() if "listening on " in each)
        url = line.split("listening on ")[1].split(",")[0]
        thread, result = on_host(1, lambda: health(url))
        thread.join(LIMIT)
        check(result == [200], f"health: {result}")
        pieces = []
        thread, _ = on_host(1, lambda: answer(url, pieces))
        job.await_that(lambda: len(pieces) > 20, "answer")
        NETWORK.cut(3, "silent")
        start = time.monotonic()
        thread.join(LIMIT)
        check(not thread.is_alive(), "the answer goes on")
        check("error" in "".join(pieces[-4:]), f"an error expected: {pieces[-4:]}")
        expect_end_of_all_hosts(job, 3, start)
    try:
        with_job(NETWORK.job((1, 1, 1), SERVE_ENDLESS, STOPS), body)
    finally:
        NETWORK.mend(3)


def main():
    global NETWORK, FOLDER
    reason = why_not()
    if reason is not None:
        print(f"hosts: SKIPPED: {reason}")
        return 0
    Network.remove_old()
    with tempfile.TemporaryDirectory() as folder:
        FOLDER = folder
        NETWORK = Network()
        try:
            for host in range(1, NUM_HOSTS + 1):
                NETWORK.await_reachable(host)
            return run_cases("hosts", globals())
        finally:
            NETWORK.remove()


if __name__ == "__main__":
    sys.exit(main())
