#!/usr/bin/env python3
"""Lists, downloads and uploads, and runs of flow whose inputs and outputs are objects, against moto as an S3 server that
checks signatures of an IAM user.

moto and boto3 are installed once from PyPI into a folder next to the build. Exit 77 if that fails.
"""
import argparse
import os
import subprocess
import sys

from python_packages import python_with

PROOF = r'''
import hashlib, http.client, json, os, shutil, signal, socketserver, subprocess, sys, tempfile, threading, http.server
import boto3
from moto.server import ThreadedMotoServer

tool, flow = sys.argv[1:3]
folder = os.path.realpath(tempfile.mkdtemp(prefix="flow-s3-"))
for name in list(os.environ):
    if name.startswith("AWS_"):
        del os.environ[name]
os.environ.update(HOME=folder, no_proxy="*")

server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
server.start()
host, port = server.get_host_and_port()


class Proxy(http.server.BaseHTTPRequestHandler):
    """Passes requests to moto; records them, and fails those that `fails` names."""
    protocol_version = "HTTP/1.1"
    seen, fails, blocks = [], None, None

    def log_message(self, *_):
        pass

    def handle_all(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        Proxy.seen.append((self.command, self.path))
        if Proxy.fails and Proxy.fails(self.command, self.path):
            self.send_response(503)
            self.send_header("Content-Length", "0")
            return self.end_headers()
        upstream = http.client.HTTPConnection(host, port)
        upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            upstream.putheader(name, value)
        upstream.endheaders(body)
        answer = upstream.getresponse()
        content = answer.read()
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("content-length", "transfer-encoding", "connection", "server", "date"):
                self.send_header(name, value)
        length = answer.getheader("Content-Length") if self.command == "HEAD" else str(len(content))
        self.send_header("Content-Length", length or "0")
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = handle_all


class ProxyServer(http.server.ThreadingHTTPServer):
    daemon_threads = True


proxy = ProxyServer(("127.0.0.1", 0), Proxy)
threading.Thread(target=proxy.serve_forever, daemon=True).start()
endpoint = "http://127.0.0.1:%d" % proxy.server_address[1]


# The user, its key, and what it may do.
admin = dict(endpoint_url="http://%s:%d" % (host, port), region_name="eu-west-1", aws_access_key_id="any", aws_secret_access_key="any")
iam = boto3.client("iam", **admin)
iam.create_user(UserName="flow")
key = iam.create_access_key(UserName="flow")["AccessKey"]
iam.put_user_policy(UserName="flow", PolicyName="s3", PolicyDocument=json.dumps(
    {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]}))


def check_signatures(is_on):
    """moto rejects boto3's own requests if their path or query has percent escapes, so these cases run without the check:
    signatures.py compares the bytes of such requests."""
    connection = http.client.HTTPConnection(host, port)
    connection.request("POST", "/moto-api/reset-auth", body="0" if is_on else "inf")
    assert connection.getresponse().status == 200


check_signatures(False)
s3 = boto3.client("s3", endpoint_url="http://%s:%d" % (host, port), region_name="eu-west-1",
                  aws_access_key_id=key["AccessKeyId"], aws_secret_access_key=key["SecretAccessKey"])
s3.create_bucket(Bucket="bucket", CreateBucketConfiguration={"LocationConstraint": "eu-west-1"})

KEYS = {"AWS_ACCESS_KEY_ID": key["AccessKeyId"], "AWS_SECRET_ACCESS_KEY": key["SecretAccessKey"]}


def start(*words, **variables):
    environment = {**os.environ, "AWS_ENDPOINT_URL": endpoint, "AWS_REGION": "eu-west-1", "FLOW_TEST_PIECE": str(5 << 20), **KEYS,
                   **variables}
    return subprocess.Popen([tool, *words], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run(*words, **variables):
    started = start(*words, **variables)
    out, errors = started.communicate()
    assert started.returncode == 0, (words, errors)
    return [json.loads(line) for line in out.splitlines()]


def fails(*words, **variables):
    started = start(*words, **variables)
    _, errors = started.communicate()
    assert started.returncode != 0, words
    for secret in KEYS.values():
        assert secret not in errors, errors
    return errors


target = folder + "/file"


def content(size):
    return hashlib.sha256(str(size).encode()).digest() * (size // 32)


# Every kind of key is downloaded and listed.
ODD = ["odd/a b", "odd/a+b", "odd/~x", "odd/é日本", "odd/%20", "odd/x=1&y", "odd/(1)!'", "odd/a//b", "odd/\U0001f600", "odd/#?"]
for each in ODD:
    s3.put_object(Bucket="bucket", Key=each, Body=each.encode())
    run("get", "s3://bucket/" + each, target)
    assert open(target, "rb").read() == each.encode(), each
    os.remove(target)
listed = run("list", "s3://bucket/odd/**")
assert listed == sorted(("s3://bucket/" + k for k in ODD), key=lambda k: k.encode()), listed
print("keys passed")

# A list of several pages; a pattern selects among them.
for i in range(2100):
    s3.put_object(Bucket="bucket", Key="many/%04d.%s" % (i, "parquet" if i % 3 else "csv"), Body=b"")
s3.put_object(Bucket="bucket", Key="many/", Body=b"")
s3.put_object(Bucket="bucket", Key="many/deep/1.parquet", Body=b"")
Proxy.seen.clear()
listed = run("list", "s3://bucket/many/*.parquet")
assert listed == ["s3://bucket/many/%04d.parquet" % i for i in range(2100) if i % 3], len(listed)
assert len(Proxy.seen) == 3, Proxy.seen
assert len(run("list", "s3://bucket/many/{0001,0003}.{parquet,csv}")) == 2
assert run("list", "s3://bucket/none/*") == []
print("lists passed")

# Ranges in parallel.
big = content(12 << 20)
s3.put_object(Bucket="bucket", Key="big", Body=big)
got = run("get", "s3://bucket/big", target)[0]
assert open(target, "rb").read() == big and got["size"] == len(big)
assert run("get", "s3://bucket/big", target, "", got["etag"]) == [{"unchanged": True}]
check_signatures(True)
run("get", "s3://bucket/big", target)
assert run("list", "s3://bucket/b*") == ["s3://bucket/big"]
print("ranges passed")

# Rejections name the cause and no secret.
assert "403 (InvalidAccessKeyId)" in fails("get", "s3://bucket/big", target, AWS_ACCESS_KEY_ID="AKIAUNKNOWNUNKNOWN00")
assert "403 (SignatureDoesNotMatch)" in fails("get", "s3://bucket/big", target, AWS_SECRET_ACCESS_KEY="totally-wrong")
assert "404 (NoSuchKey): check the URL" in fails("get", "s3://bucket/absent", target)
assert "404 (NoSuchBucket)" in fails("list", "s3://absent/*")
print("refusals passed")

# A profile file gives the same credentials.
os.mkdir(folder + "/.aws")
with open(folder + "/.aws/credentials", "w") as out:
    out.write("[lab]\naws_access_key_id = %s\naws_secret_access_key = %s\n" % tuple(KEYS.values()))
run("get", "s3://bucket/big", target, AWS_PROFILE="lab", AWS_ACCESS_KEY_ID="", AWS_SECRET_ACCESS_KEY="")
print("profiles passed")


# Uploads: small, empty, and in parts; an object that is there is not sent again.
def put(data, name, **variables):
    with open(folder + "/given", "wb") as out:
        out.write(data)
    return run("put", folder + "/given", "s3://bucket/" + name, folder + "/record", **variables)


for data, name in ((b"", "out/empty"), (b"small", "out/a b+é~"), (content(11 << 20), "out/big")):
    check_signatures("é" not in name)
    assert put(data, name) == ["uploaded"], name
    assert s3.get_object(Bucket="bucket", Key=name)["Body"].read() == data, name
    assert put(data, name) == ["already there"], name
assert put(b"other", "out/big") == ["uploaded"]
assert not os.path.exists(folder + "/record")
print("uploads passed")

# An upload that fails midway leaves no object; the next one sends only the parts that are missing.
parts = content(21 << 20)
check_signatures(True)
Proxy.fails = lambda method, path: method == "PUT" and "partNumber=4" in path
with open(folder + "/given", "wb") as out:
    out.write(parts)
error = fails("put", folder + "/given", "s3://bucket/out/parts", folder + "/record", FLOW_FETCH_RETRIES="1", FLOW_FETCH_CONNECTIONS="1")
assert "cannot write `s3://bucket/out/parts`: the server answered 503" in error, error
assert "out/parts" not in [o["Key"] for o in s3.list_objects_v2(Bucket="bucket", Prefix="out")["Contents"]]
Proxy.fails = None
Proxy.seen.clear()
assert put(parts, "out/parts") == ["uploaded"]
sent = sorted(path.split("partNumber=")[1][0] for method, path in Proxy.seen if "partNumber=" in path)
assert sent == ["4", "5"], sent
assert s3.get_object(Bucket="bucket", Key="out/parts")["Body"].read() == parts
assert not os.path.exists(folder + "/record")
print("resumed uploads passed")

# A run whose inputs and outputs are objects.
SCRIPT = """
local flow = require "flow"
local join = flow.task("join", function(ctx, files, more)
  local text = {}
  for i, path in ipairs(files) do
    local file = io.open(path)
    text[i] = file:read("a")
    file:close()
  end
  return table.concat(text, "+") .. "+" .. (more or "")
end)
local make = flow.shell("make", { args = { "text" }, outputs = { big = "big.bin", small = "small.txt" },
  command = "printf %s {text} > {outputs.small}; head -c 50331648 /dev/zero | tr '\\\\0' x > {outputs.big}" })
return flow.pipeline("objects", { extra = flow.param.path {} }, function(p)
  local groups = flow.files.groups("s3://bucket/pairs/{sample}_{n}.txt")
  return { made = make(join(flow.files("s3://bucket/tables/*.csv"), "end")), extra = p.extra, pair = groups[2].files["1"],
           samples = groups[1].sample .. groups[2].sample }
end)
"""


def flow_runs(*words, code=0, **variables):
    environment = {**os.environ, "AWS_ENDPOINT_URL": endpoint, "AWS_REGION": "eu-west-1", **KEYS, **variables}
    done = subprocess.run([flow, *words, "--state", folder + "/state"], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == code, (words, done.returncode, done.stdout, done.stderr)
    for secret in KEYS.values():
        assert secret not in done.stdout + done.stderr
    return done.stdout + done.stderr


if flow:
    check_signatures(False)  # the prefixes of lists have escapes
    for name in ("a", "b"):
        s3.put_object(Bucket="bucket", Key="tables/%s.csv" % name, Body=name.encode())
    s3.put_object(Bucket="bucket", Key="extra.txt", Body=b"extra")
    for name in ("s1_1", "s1_2", "s2_1", "s2_2"):
        s3.put_object(Bucket="bucket", Key="pairs/%s.txt" % name, Body=name.encode())
    with open(folder + "/pipeline.lua", "w") as out:
        out.write(SCRIPT)
    extra = ["--param", "extra=s3://bucket/extra.txt"]
    Proxy.fails = lambda method, path: method == "PUT" and "partNumber=2" in path
    said = flow_runs("run", "pipeline.lua", *extra, "--out", "s3://bucket/results/1", code=4, FLOW_FETCH_RETRIES="0",
                     FLOW_FETCH_CONNECTIONS="1")
    assert "cannot write `s3://bucket/results/1/big.bin`" in said, said
    assert "succeeded" in flow_runs("show", "last")
    Proxy.fails = None
    Proxy.seen.clear()
    urls = flow_runs("get", "last", "-o", "s3://bucket/results/1").split()
    sent = sorted(path.split("partNumber=")[1][0] for method, path in Proxy.seen if "partNumber=" in path)
    assert sent == ["2", "3"], sent
    assert urls == ["s3://bucket/results/1/" + name for name in ("big.bin", "extra.txt", "result.json", "s2_1.txt", "small.txt")], urls
    assert s3.get_object(Bucket="bucket", Key="results/1/small.txt")["Body"].read() == b"a+b+end"
    assert s3.get_object(Bucket="bucket", Key="results/1/s2_1.txt")["Body"].read() == b"s2_1"
    assert json.loads(flow_runs("show", "last", "--json"))["result"]["samples"] == "s1s2"
    assert s3.get_object(Bucket="bucket", Key="results/1/extra.txt")["Body"].read() == b"extra"
    assert s3.get_object(Bucket="bucket", Key="results/1/big.bin")["Body"].read() == b"x" * (48 << 20)
    assert os.listdir(folder + "/state/uploads") == []
    # Nothing is fetched or sent again while nothing changes.
    Proxy.seen.clear()
    again = flow_runs("run", "pipeline.lua", *extra, "--out", "s3://bucket/results/1/")
    assert not [path for method, path in Proxy.seen if method in ("PUT", "POST") and "results" in path], Proxy.seen
    s3.put_object(Bucket="bucket", Key="tables/c.csv", Body=b"c")
    flow_runs("run", "pipeline.lua", *extra, "--out", "s3://bucket/results/2")
    assert s3.get_object(Bucket="bucket", Key="results/2/small.txt")["Body"].read() == b"a+b+c+end"
    flow_runs("run", "pipeline.lua", *extra, "--out", "https://example.org/x", code=2)
    assert "only the server can list" in flow_runs("run", "pipeline.lua", *extra, "--offline", code=2)
    print("runs passed")

server.stop()
proxy.shutdown()
shutil.rmtree(folder)
'''


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tool", required=True)
    parser.add_argument("--build", required=True)
    parser.add_argument("--flow", default="", help="without it no pipeline runs")
    args = parser.parse_args()
    python, why = python_with(args.build, ["moto[s3,iam,server]", "boto3"], ["boto3", "moto.server"])
    if python is None:
        print("skipped: " + why)
        return 77
    return subprocess.run([python, "-c", PROOF, os.path.abspath(args.tool), args.flow and os.path.abspath(args.flow)]).returncode


if __name__ == "__main__":
    sys.exit(main())
