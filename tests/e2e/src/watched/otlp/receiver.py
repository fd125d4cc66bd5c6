"""A receiver of OTLP by gRPC, of Python's own libraries: prints a line of JSON for each request that it takes.

Without arguments by plain text; else the files of a certificate, its key, and who signs those of clients. The first
line has the port. PORT in the environment is one to listen on again.
"""

import json
import os
import sys
from concurrent import futures

import grpc
from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.logs.v1 import logs_service_pb2 as logs
from opentelemetry.proto.collector.logs.v1 import logs_service_pb2_grpc as logs_grpc
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as metrics
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2_grpc as metrics_grpc


def tell(**line):
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def take(kind, request, context):
    headers = {key: str(value) for key, value in context.invocation_metadata()}
    tell(kind=kind, headers=headers, request=MessageToDict(request))


class Logs(logs_grpc.LogsServiceServicer):
    def Export(self, request, context):
        take("logs", request, context)
        return logs.ExportLogsServiceResponse()


class Metrics(metrics_grpc.MetricsServiceServicer):
    def Export(self, request, context):
        take("metrics", request, context)
        return metrics.ExportMetricsServiceResponse()


def main():
    # One request at a time, so that lines don't mix.
    server = grpc.server(futures.ThreadPoolExecutor(1), options=[("grpc.so_reuseport", 0)])
    logs_grpc.add_LogsServiceServicer_to_server(Logs(), server)
    metrics_grpc.add_MetricsServiceServicer_to_server(Metrics(), server)
    address = "127.0.0.1:" + os.environ.get("PORT", "0")
    if len(sys.argv) == 1:
        port = server.add_insecure_port(address)
    else:
        certificate, key, authority = [open(name, "rb").read() for name in sys.argv[1:]]
        credentials = grpc.ssl_server_credentials([(key, certificate)], authority, True)
        port = server.add_secure_port(address, credentials)
    server.start()
    tell(port=port)
    server.wait_for_termination()


main()
