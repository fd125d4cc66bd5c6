//! Passing calls on to the process of their VM.

use std::collections::HashMap;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::uri::PathAndQuery;
use http::{Extensions, Request as HttpRequest};
use prost::Message;
use tokio::sync::oneshot;
use tokio_stream::{Stream, StreamExt};
use tonic::body::Body;
use tonic::codegen::BoxFuture;
use tonic::server::{Grpc, StreamingService};
use tonic::{Request, Response, Status, Streaming};
use vmprobe_proto::v1;

use super::addressed::{self, Address};
use super::calls;
use super::process::VmProcess;
use super::raw::RawCodec;
use super::request_size::with_limit;
use super::vms::Vms;
use crate::access::{Caller, NamedVm, Role};
use crate::call_layer::{Answer, CallService, OnCall};

/// The call that registers probes, which may have actions.
const REGISTER: &str = "/vmprobe.v1.ProbeService/RegisterProbes";

type Messages = Pin<Box<dyn Stream<Item = Result<Bytes, Status>> + Send>>;

/// Passes on the calls that name a VM.
#[derive(Clone, Debug)]
pub struct Relay {
    vms: Arc<Vms>,
    addresses: Arc<HashMap<String, Address>>,
}

impl Relay {
    /// Makes a relay to these VMs.
    pub fn new(vms: Arc<Vms>) -> Self {
        Self {
            vms,
            addresses: Arc::new(addressed::addresses()),
        }
    }
}

impl OnCall for Relay {
    fn on_call(&self, request: HttpRequest<Body>, inner: &mut impl CallService) -> Answer {
        let uri = request.uri();
        if let Some(answer) = calls::answer(&self.vms, uri.path()) {
            let answer = answer(request);
            return Box::pin(async { Ok(with_limit(answer.await?)) });
        }
        let address = self.addresses.get(uri.path()).copied();
        let Some((address, path)) = address.zip(uri.path_and_query().cloned()) else {
            let answer = inner.call(request);
            return Box::pin(async { Ok(with_limit(answer.await?)) });
        };
        let most = self.vms.settings().limits.request_bytes();
        let call = RelayedCall {
            vms: Arc::clone(&self.vms),
            address,
            path,
        };
        Box::pin(async move {
            let grpc = Grpc::new(RawCodec).max_decoding_message_size(most);
            Ok(with_limit({ grpc }.streaming(call, request).await))
        })
    }
}

/// One call.
struct RelayedCall {
    vms: Arc<Vms>,
    address: Address,
    path: PathAndQuery,
}

impl StreamingService<Bytes> for RelayedCall {
    type Response = Bytes;
    type ResponseStream = Messages;
    type Future = BoxFuture<Response<Messages>, Status>;

    fn call(&mut self, request: Request<Streaming<Bytes>>) -> Self::Future {
        let (vms, address, path) = (Arc::clone(&self.vms), self.address, self.path.clone());
        Box::pin(async move {
            let (metadata, extensions, mut messages) = request.into_parts();
            let caller = Caller::of(&extensions)?;
            let named = extensions.get::<NamedVm>().cloned().unwrap_or_default();
            let first = messages.message().await?;
            let first = first.ok_or_else(|| address.missing())?;
            let vm = address.vm(first.clone())?;
            caller.check_vm(&vm)?;
            named.tell(&vm);
            if caller.role < Role::Control && path.path() == REGISTER {
                check_watches_only(&caller, first.clone())?;
            }
            let process = vms.get(&vm)?;
            // A message that is too long ends the stream of messages.
            let rest = messages.map_while(Result::ok);
            let (answering, answered) = oneshot::channel();
            let heard = Heard {
                messages: Box::pin(tokio_stream::once(first).chain(rest)),
                answered,
            };
            let request = Request::from_parts(metadata, Extensions::new(), heard);
            pass_on(process, request, path, answering).await
        })
    }
}

/// A client's messages, until the answer is dropped. HTTP/2 keeps a call open as long as its client sends messages,
/// even when the answer isn't wanted any more.
struct Heard {
    messages: Pin<Box<dyn Stream<Item = Bytes> + Send>>,
    /// Completes when the answer is dropped.
    answered: oneshot::Receiver<Infallible>,
}

impl Stream for Heard {
    type Item = Bytes;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        match Pin::new(&mut self.answered).poll(cx) {
            Poll::Ready(_) => Poll::Ready(None),
            Poll::Pending => self.messages.as_mut().poll_next(cx),
        }
    }
}

/// # Errors
/// `PERMISSION_DENIED` if one of the probes that are to be registered has actions.
fn check_watches_only(caller: &Caller, request: Bytes) -> Result<(), Status> {
    // A request that can't be decoded is refused by the VM's process.
    let request = v1::RegisterProbesRequest::decode(request).unwrap_or_default();
    match request.probes.iter().all(|probe| probe.actions.is_empty()) {
        true => Ok(()),
        false => caller.check_role(Role::Control, "a probe that does something to the guest"),
    }
}

/// Lets the VM's process answer. `answering` is dropped with the answer.
async fn pass_on(
    process: Arc<VmProcess>,
    request: Request<impl Stream<Item = Bytes> + Send + 'static>,
    path: PathAndQuery,
    answering: oneshot::Sender<Infallible>,
) -> Result<Response<Messages>, Status> {
    // The process limits its messages itself, and the client limits what it accepts.
    let client = tonic::client::Grpc::new(process.channel());
    let mut client = client.max_decoding_message_size(usize::MAX);
    let response = match client.ready().await {
        Ok(()) => client.streaming(request, path, RawCodec).await,
        Err(error) => Err(Status::from_error(error.into())),
    };
    let response = match response {
        Ok(response) => response,
        Err(status) => return Err(process.explain(status).await),
    };
    Ok(response.map(|messages| {
        Box::pin(messages.then(move |message| {
            let _goes_with_this = &answering;
            let process = Arc::clone(&process);
            async move {
                match message {
                    Ok(message) => Ok(message),
                    Err(status) => Err(process.explain(status).await),
                }
            }
        })) as Messages
    }))
}
