use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use opentelemetry_proto::tonic::collector::logs::v1::logs_service_server::{
    LogsService, LogsServiceServer,
};
use opentelemetry_proto::tonic::collector::logs::v1::{
    ExportLogsPartialSuccess, ExportLogsServiceRequest, ExportLogsServiceResponse,
};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status};

use super::*;
use crate::{Export, samples};

/// Events, and how many of them a sink may take while its receiver is away: two requests, and what waits for the sink.
const EVENTS: u64 = 3000;
const MOST_TAKEN: usize = 2 * BATCH + 256 + 1;
const LIMIT: Duration = Duration::from_secs(60);

/// A receiver, which gives its first requests the answers of a list.
#[derive(Clone, Default)]
struct Receiver {
    taken: Arc<Mutex<Vec<u64>>>,
    answers: Arc<Mutex<VecDeque<Result<i64, Status>>>>,
}

#[tonic::async_trait]
impl LogsService for Receiver {
    async fn export(
        &self,
        request: Request<ExportLogsServiceRequest>,
    ) -> Result<Response<ExportLogsServiceResponse>, Status> {
        let answer = self.answers.lock().unwrap().pop_front();
        let refused = answer.transpose()?.unwrap_or(0);
        let hosts = request.into_inner().resource_logs.into_iter();
        let scopes = hosts.flat_map(|host| host.scope_logs);
        let logs = scopes.flat_map(|scope| scope.log_records);
        let times = logs.map(|log| log.time_unix_nano);
        self.taken.lock().unwrap().extend(times);
        Ok(Response::new(ExportLogsServiceResponse {
            partial_success: Some(ExportLogsPartialSuccess {
                rejected_log_records: refused,
                error_message: "too old".to_owned(),
            }),
        }))
    }
}

impl Receiver {
    async fn listen(&self, address: SocketAddr) -> (SocketAddr, JoinHandle<()>) {
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let service = LogsServiceServer::new(self.clone());
        let serving = tonic::transport::Server::builder()
            .add_service(service)
            .serve_with_incoming(TcpListenerStream::new(listener));
        (address, tokio::spawn(async move { serving.await.unwrap() }))
    }
}

type Said = Arc<Mutex<Vec<String>>>;

fn sink(address: SocketAddr) -> (Otlp, Said) {
    let said = Said::default();
    let say: Say = {
        let said = Arc::clone(&said);
        Arc::new(move |text: &str| said.lock().unwrap().push(text.to_owned()))
    };
    let options = OtlpOptions {
        timeout: LIMIT,
        ..OtlpOptions::new(format!("http://{address}").parse().unwrap())
    };
    (Otlp::new(&options, say).unwrap(), said)
}

fn any_port() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

#[tokio::test]
async fn each_event_arrives_in_its_order_although_the_receiver_is_away_for_a_while() {
    let receiver = Receiver::default();
    let (address, serving) = receiver.listen(any_port()).await;
    serving.abort();
    // Dropped, with its socket.
    let _ = serving.await;
    let (sink, said) = sink(address);
    let handed = Arc::new(AtomicUsize::new(0));
    let handing = tokio::spawn({
        let handed = Arc::clone(&handed);
        async move {
            let mut export = Export::default();
            export.add(sink);
            for time in 0..EVENTS {
                export.hand(samples::of("a", "b", time)).await.unwrap();
                handed.fetch_add(1, Ordering::Relaxed);
            }
            export.finish(LIMIT).await
        }
    });
    while said.lock().unwrap().is_empty() {
        tokio::task::yield_now().await;
    }
    let while_away = handed.load(Ordering::Relaxed);
    assert!(while_away <= MOST_TAKEN, "{while_away} were taken");
    let (_, serving) = receiver.listen(address).await;
    let outcome = handing.await.unwrap().remove(0);
    assert_eq!((outcome.exported, outcome.failed), (EVENTS, 0));
    assert!(outcome.error.is_none(), "{:?}", outcome.error);
    let taken = receiver.taken.lock().unwrap().clone();
    assert_eq!(taken, (0..EVENTS).collect::<Vec<_>>());
    let said = said.lock().unwrap();
    let kinds: Vec<_> = said.iter().map(|it| &it[..10]).collect();
    assert_eq!(kinds, ["otlp is aw", "otlp is ba"], "{said:?}");
    serving.abort();
}

#[tokio::test]
async fn what_a_receiver_refuses_has_failed_with_its_reason() {
    let receiver = Receiver::default();
    *receiver.answers.lock().unwrap() =
        [Err(Status::invalid_argument("what is this?")), Ok(3)].into();
    let (address, serving) = receiver.listen(any_port()).await;
    let (sink, said) = sink(address);
    let mut export = Export::default();
    export.add(sink);
    let full = BATCH as u64;
    for time in 0..2 * full {
        export.hand(samples::of("a", "b", time)).await.unwrap();
    }
    let outcome = export.finish(LIMIT).await.remove(0);
    assert_eq!(outcome.exported + outcome.failed, 2 * full);
    let taken = receiver.taken.lock().unwrap().len() as u64;
    assert_eq!(outcome.exported, taken - 3);
    let error = outcome.error.unwrap().to_string();
    assert!(error.contains("too old"), "{error}");
    let said = said.lock().unwrap();
    assert!(said[0].contains("what is this?"), "{said:?}");
    serving.abort();
}

#[tokio::test]
async fn what_a_receiver_that_stays_away_has_not_taken_is_counted() {
    let receiver = Receiver::default();
    let (address, serving) = receiver.listen(any_port()).await;
    serving.abort();
    let _ = serving.await;
    let (sink, _said) = sink(address);
    let mut export = Export::default();
    export.add(sink);
    for time in 0..7 {
        export.hand(samples::of("a", "b", time)).await.unwrap();
    }
    let outcome = export.finish(Duration::from_millis(50)).await.remove(0);
    assert_eq!((outcome.exported, outcome.failed), (0, 7));
    let error = outcome.error.unwrap().to_string();
    assert!(error.contains("the last 7 events"), "{error}");
}
