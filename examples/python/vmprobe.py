"""A client of vmprobed for Python. It learns the protocol from the server by reflection (v1alpha): no code is generated."""

import queue

import grpc
from google.protobuf import descriptor_pool, message_factory
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase


def channel(server, ca=None, cert=None, key=None, token=None):
    """A channel to HOST:PORT or unix:PATH. For TLS: the authority, and a certificate with its key or a token."""
    if ca is None:
        return grpc.insecure_channel(server)
    credentials = grpc.ssl_channel_credentials(ca, key, cert)
    if token is not None:
        bearer = grpc.access_token_call_credentials(token)
        credentials = grpc.composite_channel_credentials(credentials, bearer)
    return grpc.secure_channel(server, credentials)


class Api:
    """The services of a server: `api.vm.GetVm(vm="web-1")` returns the answer.

    A method whose answer is a stream returns an iterator with `cancel()`. One whose request is a stream takes an iterable
    of dicts, such as `Requests`. Fields have the names of the .proto files, messages may be dicts, and enumerators texts.
    """

    def __init__(self, channel):
        database = ProtoReflectionDescriptorDatabase(channel)
        pool = descriptor_pool.DescriptorPool(database)
        for name in database.get_services():
            if name.startswith("vmprobe.v1.") or name == "grpc.health.v1.Health":
                short = name.split(".")[-1].removesuffix("Service").lower()
                setattr(self, short, _Service(channel, pool.FindServiceByName(name)))


class _Service:
    def __init__(self, channel, service):
        for method in service.methods:
            setattr(self, method.name, _method(channel, method))


def _method(channel, method):
    request = message_factory.GetMessageClass(method.input_type)
    answer = message_factory.GetMessageClass(method.output_type)
    kinds = {False: "unary", True: "stream"}
    make = getattr(channel, f"{kinds[method.client_streaming]}_{kinds[method.server_streaming]}")
    path = f"/{method.containing_service.full_name}/{method.name}"
    call = make(path, request.SerializeToString, answer.FromString)
    if method.client_streaming:
        return lambda parts, timeout=None: call((request(**part) for part in parts), timeout)
    return lambda timeout=None, **fields: call(request(**fields), timeout)


class Requests:
    """The requests of a stream: dicts that are sent one by one, up to `end`."""

    def __init__(self):
        self._queue = queue.Queue()

    def send(self, **request):
        self._queue.put(request)

    def end(self):
        self._queue.put(None)

    def __iter__(self):
        return iter(self._queue.get, None)
