// A client of vmprobed for Node.js. It learns the protocol from the server by reflection (v1): no code is generated.
import { createRequire } from 'node:module';
import grpc from '@grpc/grpc-js';
import loader from '@grpc/proto-loader';
import descriptor from 'protobufjs/ext/descriptor/index.js';

const require = createRequire(import.meta.url);
// Names as in the .proto files; numbers of 64 bits as decimal texts.
const OPTIONS = { keepCase: true, longs: String, enums: String, oneofs: true, defaults: true };

// What connect() needs for TLS: the authority, and a certificate with its key or a token. Each file is given as bytes.
export function credentials({ ca, cert, key, token }) {
  if (!ca) return grpc.credentials.createInsecure();
  const tls = grpc.credentials.createSsl(ca, key, cert);
  if (!token) return tls;
  const bearer = (_, done) => {
    const metadata = new grpc.Metadata();
    metadata.set('authorization', `Bearer ${token}`);
    done(null, metadata);
  };
  return grpc.credentials.combineChannelCredentials(tls, grpc.credentials.createFromMetadataGenerator(bearer));
}

// Connects to HOST:PORT or unix:PATH. Returns an object with a client for each service: `vm.GetVm({ vm: 'web-1' })` is
// a promise of the answer, and a method with a stream returns the stream of grpc-js.
export async function connect(address, credentials, options = {}) {
  const types = await reflect(address, credentials, options);
  const api = { close: () => Object.values(api).forEach((service) => service.close?.()) };
  for (const [name, definition] of Object.entries(types)) {
    const short = /^vmprobe\.v1\.(\w+)Service$|^grpc\.health\.v1\.(Health)$/.exec(name);
    if (!short) continue;
    const Service = grpc.makeGenericClientConstructor(definition, name);
    const client = new Service(address, credentials, options);
    for (const { path, requestStream, responseStream } of Object.values(definition)) {
      if (requestStream || responseStream) continue;
      const method = path.split('/').pop();
      const call = client[method].bind(client);
      client[method] = (request, options = {}) =>
        new Promise((resolve, reject) => {
          call(request, options, (error, answer) => (error ? reject(refusal(error, types)) : resolve(answer)));
        });
    }
    api[(short[1] ?? short[2]).toLowerCase()] = client;
  }
  return api;
}

// Adds to an error what the server tells for programs: `error.details_of['google.rpc.BadRequest']` and others.
function refusal(error, types) {
  error.details_of = {};
  for (const bytes of error.metadata?.get('grpc-status-details-bin') ?? []) {
    for (const { type_url, value } of types['google.rpc.Status'].deserialize(bytes).details) {
      const name = type_url.split('/').pop();
      if (types[name]) error.details_of[name] = types[name].deserialize(value);
    }
  }
  return error;
}

// All services and messages of the server, by their full names.
async function reflect(address, credentials, options) {
  const proto = require.resolve('@grpc/reflection/build/proto/grpc/reflection/v1/reflection.proto');
  const { ServerReflection } = grpc.loadPackageDefinition(loader.loadSync(proto, OPTIONS)).grpc.reflection.v1;
  const client = new ServerReflection(address, credentials, options);
  const stream = client.ServerReflectionInfo();
  const answers = stream[Symbol.asyncIterator]();
  const ask = async (question) => {
    stream.write(question);
    const { value } = await answers.next();
    if (value.error_response) throw new Error(value.error_response.error_message);
    return value;
  };
  const files = new Map();
  const load = async (question) => {
    for (const bytes of (await ask(question)).file_descriptor_response.file_descriptor_proto) {
      const file = descriptor.FileDescriptorProto.decode(bytes);
      if (files.has(file.name)) continue;
      files.set(file.name, file);
      for (const name of file.dependency) await load({ file_by_filename: name });
    }
  };
  try {
    const { service } = (await ask({ list_services: '' })).list_services_response;
    const details = ['google.rpc.Status', 'google.rpc.BadRequest'];
    for (const name of [...service.map(({ name }) => name), ...details]) await load({ file_containing_symbol: name });
  } finally {
    stream.end();
    client.close();
  }
  return loader.loadFileDescriptorSetFromObject({ file: [...files.values()] }, OPTIONS);
}
