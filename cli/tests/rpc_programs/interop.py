"""gRPC's interop tests, by another implementation of gRPC: Debian's python3-grpcio. Usage: interop.py ADDRESS PROTO TEST...

A test is written after its description in grpc/doc/interop-test-descriptions.md. Prints one line per test.
"""

import importlib
import sys
import tempfile
import threading
import time

import grpc
import grpc_tools
from grpc_tools import protoc

ADDRESS, PROTO, TESTS = sys.argv[1], sys.argv[2], sys.argv[3:]

folder = tempfile.mkdtemp()
sys.path.insert(0, folder)
include = PROTO.rsplit("/", 1)[0]
fronts = include + "/../../fronts/grpc/proto"
google = grpc_tools.__path__[0] + "/_proto"
orca_protos = ["xds/data/orca/v3/orca_load_report.proto", "xds/service/orca/v3/orca.proto"]
out = [f"--python_out={folder}", f"--grpc_python_out={folder}"]
if protoc.main(["", f"-I{include}", *out, PROTO]) != 0 or protoc.main(["", f"-I{fronts}", f"-I{google}", *out, *orca_protos]) != 0:
    sys.exit("the .proto files cannot be compiled")
pb = importlib.import_module("interop_pb2")
stubs = importlib.import_module("interop_pb2_grpc")
loads = importlib.import_module("xds.data.orca.v3.orca_load_report_pb2").OrcaLoadReport
orca = importlib.import_module("xds.service.orca.v3.orca_pb2")

channel = grpc.insecure_channel(ADDRESS)
stub = stubs.TestServiceStub(channel)


def check(is_so, what):
    if not is_so:
        raise AssertionError(what)


def refused(call, code):
    try:
        call()
    except grpc.RpcError as error:
        check(error.code() == code, f"{error.code()} instead of {code}: {error.details()}")
        return error
    raise AssertionError(f"it is answered instead of {code}")


def payload(size):
    return pb.Payload(body=b"\0" * size)


def as_load(report):
    """The load report that a client gets for the one that it asked for."""
    return loads(
        cpu_utilization=report.cpu_utilization,
        mem_utilization=report.memory_utilization,
        request_cost=report.request_cost,
        utilization=report.utilization,
    )


def wanted(size, compressed=None):
    value = None if compressed is None else pb.BoolValue(value=compressed)
    return pb.ResponseParameters(size=size, compressed=value)


def empty_unary():
    check(stub.EmptyCall(pb.Empty(), timeout=10) == pb.Empty(), "another reply")


def large_unary():
    reply = stub.UnaryCall(pb.SimpleRequest(response_size=314159, payload=payload(271828)), timeout=20)
    check(reply.payload.body == b"\0" * 314159, len(reply.payload.body))


def client_streaming():
    sizes = [27182, 8, 1828, 45904]
    reply = stub.StreamingInputCall(
        (pb.StreamingInputCallRequest(payload=payload(size)) for size in sizes), timeout=10
    )
    check(reply.aggregated_payload_size == 74922, reply)


def server_streaming():
    sizes = [31415, 9, 2653, 58979]
    request = pb.StreamingOutputCallRequest(response_parameters=[wanted(size) for size in sizes])
    got = [len(reply.payload.body) for reply in stub.StreamingOutputCall(request, timeout=10)]
    check(got == sizes, got)


class Requests:
    """Requests that are sent one by one."""

    def __init__(self):
        self.waiting, self.condition, self.done = [], threading.Condition(), False

    def send(self, request):
        with self.condition:
            self.waiting.append(request)
            self.condition.notify()

    def close(self):
        with self.condition:
            self.done = True
            self.condition.notify()

    def __iter__(self):
        return self

    def __next__(self):
        with self.condition:
            while not self.waiting and not self.done:
                self.condition.wait()
            if self.waiting:
                return self.waiting.pop(0)
            raise StopIteration


def ping_pong():
    requests = Requests()
    replies = stub.FullDuplexCall(requests, timeout=20)
    for size, sent in [(31415, 27182), (9, 8), (2653, 1828), (58979, 45904)]:
        requests.send(pb.StreamingOutputCallRequest(response_parameters=[wanted(size)], payload=payload(sent)))
        check(len(next(replies).payload.body) == size, size)
    requests.close()
    check(list(replies) == [], "more replies")


def empty_stream():
    check(list(stub.FullDuplexCall(iter([]), timeout=10)) == [], "replies")


def timeout_on_sleeping_server():
    request = pb.StreamingOutputCallRequest(
        response_parameters=[pb.ResponseParameters(size=31415, interval_us=500_000)], payload=payload(27182)
    )
    refused(lambda: list(stub.FullDuplexCall(iter([request]), timeout=0.05)), grpc.StatusCode.DEADLINE_EXCEEDED)


def cancel_after_begin():
    call = stub.StreamingInputCall.future(Requests(), timeout=10)
    call.cancel()
    check(call.cancelled() and call.code() == grpc.StatusCode.CANCELLED, call.code())


def cancel_after_first_response():
    requests = Requests()
    replies = stub.FullDuplexCall(requests, timeout=10)
    requests.send(pb.StreamingOutputCallRequest(response_parameters=[wanted(31415)], payload=payload(27182)))
    check(len(next(replies).payload.body) == 31415, "the first reply")
    replies.cancel()
    refused(lambda: next(replies), grpc.StatusCode.CANCELLED)


def status_code_and_message():
    text = "test status message"
    status = pb.EchoStatus(code=2, message=text)
    request = pb.SimpleRequest(response_status=status)
    error = refused(lambda: stub.UnaryCall(request, timeout=10), grpc.StatusCode.UNKNOWN)
    check(error.details() == text, error.details())
    request = pb.StreamingOutputCallRequest(response_status=status)
    error = refused(lambda: list(stub.FullDuplexCall(iter([request]), timeout=10)), grpc.StatusCode.UNKNOWN)
    check(error.details() == text, error.details())


def special_status_message():
    text = "\t\ntest with whitespace\r\nand Unicode BMP ☺ and non-BMP \U0001f608\t\n"
    error = refused(
        lambda: stub.UnaryCall(pb.SimpleRequest(response_status=pb.EchoStatus(code=2, message=text)), timeout=10),
        grpc.StatusCode.UNKNOWN,
    )
    check(error.details() == text, repr(error.details()))


def custom_metadata():
    initial, trailing = ("x-grpc-test-echo-initial", "test_initial_metadata_value"), (
        "x-grpc-test-echo-trailing-bin",
        b"\xab\xab\xab",
    )
    metadata = (initial, trailing)
    _, call = stub.UnaryCall.with_call(
        pb.SimpleRequest(response_size=314159, payload=payload(271828)), metadata=metadata, timeout=20
    )
    check(initial in [tuple(pair) for pair in call.initial_metadata()], call.initial_metadata())
    check(trailing in [tuple(pair) for pair in call.trailing_metadata()], call.trailing_metadata())
    request = pb.StreamingOutputCallRequest(response_parameters=[wanted(314159)], payload=payload(271828))
    replies = stub.FullDuplexCall(iter([request]), metadata=metadata, timeout=20)
    check(len(next(replies).payload.body) == 314159, "the reply")
    check(initial in [tuple(pair) for pair in replies.initial_metadata()], replies.initial_metadata())
    check(list(replies) == [], "more replies")
    check(trailing in [tuple(pair) for pair in replies.trailing_metadata()], replies.trailing_metadata())


def unimplemented_method():
    refused(lambda: stub.UnimplementedCall(pb.Empty(), timeout=10), grpc.StatusCode.UNIMPLEMENTED)


def unimplemented_service():
    call = channel.unary_unary(
        "/grpc.testing.UnimplementedService/UnimplementedCall",
        request_serializer=pb.Empty.SerializeToString,
        response_deserializer=pb.Empty.FromString,
    )
    refused(lambda: call(pb.Empty(), timeout=10), grpc.StatusCode.UNIMPLEMENTED)


GZIP, PLAIN = grpc.Compression.Gzip, grpc.Compression.NoCompression


def client_compressed_unary():
    def call(expected, compression):
        request = pb.SimpleRequest(
            response_size=314159, payload=payload(271828), expect_compressed=pb.BoolValue(value=expected)
        )
        return stub.UnaryCall(request, compression=compression, timeout=20)

    refused(lambda: call(True, PLAIN), grpc.StatusCode.INVALID_ARGUMENT)
    for expected, compression in [(True, GZIP), (False, PLAIN)]:
        check(len(call(expected, compression).payload.body) == 314159, "the reply")


def server_compressed_unary():
    for compressed in [True, False]:
        request = pb.SimpleRequest(
            response_size=314159, payload=payload(271828), response_compressed=pb.BoolValue(value=compressed)
        )
        check(len(stub.UnaryCall(request, timeout=20).payload.body) == 314159, "the reply")


def client_compressed_streaming():
    def call(expected, compression):
        requests = [
            pb.StreamingInputCallRequest(payload=payload(27182), expect_compressed=pb.BoolValue(value=expected)),
            pb.StreamingInputCallRequest(payload=payload(45904), expect_compressed=pb.BoolValue(value=expected)),
        ]
        return stub.StreamingInputCall(iter(requests), compression=compression, timeout=20)

    refused(lambda: call(True, PLAIN), grpc.StatusCode.INVALID_ARGUMENT)
    for expected, compression in [(True, GZIP), (False, PLAIN)]:
        check(call(expected, compression).aggregated_payload_size == 73086, "the sum")


def server_compressed_streaming():
    request = pb.StreamingOutputCallRequest(response_parameters=[wanted(31415, True), wanted(92653, False)])
    got = [len(reply.payload.body) for reply in stub.StreamingOutputCall(request, timeout=20)]
    check(got == [31415, 92653], got)


def orca_oob():
    """With the service that load balancers use: grpcio shows them no reports, and hides those in trailers."""
    asked = orca.OrcaLoadReportRequest(report_interval={"nanos": 100_000_000})
    # It stays open, and occupies no worker.
    reports = channel.unary_stream(
        "/xds.service.orca.v3.OpenRcaService/StreamCoreMetrics",
        request_serializer=orca.OrcaLoadReportRequest.SerializeToString,
        response_deserializer=loads.FromString,
    )(asked)
    requests = Requests()
    replies = stub.FullDuplexCall(requests, timeout=20)
    for cpu, memory, util in [(0.8210, 0.5847, 0.30499), (0.29309, 0.2, 0.2039)]:
        report = pb.TestOrcaReport(cpu_utilization=cpu, memory_utilization=memory, utilization={"util": util})
        requests.send(pb.StreamingOutputCallRequest(orca_oob_report=report, response_parameters=[wanted(1)]))
        check(len(next(replies).payload.body) == 1, "the reply")
        while next(reports) != as_load(report):
            pass
    requests.close()
    check(list(replies) == [], "more replies")
    reports.cancel()


def reflection():
    """What grpcurl asks first: the file of a symbol, and the file's descriptor."""
    path = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
    symbol = b"grpc.testing.TestService"
    # Field 4 of ServerReflectionRequest is the symbol.
    request = bytes([4 << 3 | 2, len(symbol)]) + symbol
    (answer,) = list(channel.stream_stream(path)(iter([request])))
    for part in [b"interop.proto", b"TestService", b"FullDuplexCall"]:
        check(part in answer, f"the descriptor has {part}")


ALL = [
    empty_unary,
    large_unary,
    client_streaming,
    server_streaming,
    ping_pong,
    empty_stream,
    timeout_on_sleeping_server,
    cancel_after_begin,
    cancel_after_first_response,
    status_code_and_message,
    special_status_message,
    custom_metadata,
    unimplemented_method,
    unimplemented_service,
    client_compressed_unary,
    server_compressed_unary,
    client_compressed_streaming,
    server_compressed_streaming,
    orca_oob,
    reflection,
]

grpc.channel_ready_future(channel).result(timeout=30)
failed = 0
for test in ALL:
    if TESTS and test.__name__ not in TESTS:
        continue
    start = time.time()
    try:
        test()
        print(f"passed {test.__name__} {time.time() - start:.2f} s", flush=True)
    except Exception as error:  # Whatever went wrong, the others are still to be run.
        failed += 1
        print(f"FAILED {test.__name__}: {type(error).__name__}: {error}", flush=True)
sys.exit(1 if failed else 0)
