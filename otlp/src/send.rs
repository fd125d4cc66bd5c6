//! Sending requests.

use std::fmt;

use opentelemetry_proto::tonic::collector::logs::v1::{
    ExportLogsServiceRequest, ExportLogsServiceResponse,
};
use opentelemetry_proto::tonic::collector::metrics::v1::{
    ExportMetricsServiceRequest, ExportMetricsServiceResponse,
};
use tokio::time::timeout;

use crate::error::{OtlpError, SendError};
use crate::grpc::Grpc;
use crate::http1::Http;
use crate::options::{OtlpOptions, Protocol};

/// A kind of request that receivers take, and the answer to it.
pub trait Signal: prost::Message + Clone + 'static {
    /// The answer.
    type Answer: prost::Message + Default + 'static;
    /// The path of the call, by gRPC (opentelemetry/proto/collector).
    const CALL: &'static str;
    /// The path behind the URL, by HTTP (OTLP specification, "OTLP/HTTP Request").
    const PATH: &'static str;

    /// Returns what an answer says: how many items of the request were refused, and why.
    fn accepted(answer: Self::Answer) -> Accepted;
}

/// A receiver's answer about what it has taken.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Accepted {
    /// How many log records or data points it has refused.
    pub refused: u64,
    /// The reason, or another message of the receiver.
    pub message: String,
}

fn accepted(refused: i64, message: String) -> Accepted {
    Accepted {
        refused: refused.try_into().unwrap_or(0),
        message,
    }
}

impl Signal for ExportLogsServiceRequest {
    type Answer = ExportLogsServiceResponse;
    const CALL: &'static str = "/opentelemetry.proto.collector.logs.v1.LogsService/Export";
    const PATH: &'static str = "v1/logs";

    fn accepted(answer: Self::Answer) -> Accepted {
        let part = answer.partial_success.unwrap_or_default();
        accepted(part.rejected_log_records, part.error_message)
    }
}

impl Signal for ExportMetricsServiceRequest {
    type Answer = ExportMetricsServiceResponse;
    const CALL: &'static str = "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export";
    const PATH: &'static str = "v1/metrics";

    fn accepted(answer: Self::Answer) -> Accepted {
        let part = answer.partial_success.unwrap_or_default();
        accepted(part.rejected_data_points, part.error_message)
    }
}

/// Sends to one receiver, by one connection that is made when it is needed.
#[derive(Debug)]
pub struct Sender {
    way: Way,
    options: OtlpOptions,
}

#[derive(Debug)]
enum Way {
    Grpc(Grpc),
    Http(Box<Http>),
}

impl Sender {
    /// Makes a sender to a receiver, without connecting to it. Needs a tokio runtime, which drives the connection.
    ///
    /// # Errors
    /// See [`OtlpError`].
    pub fn new(options: &OtlpOptions) -> Result<Self, OtlpError> {
        Ok(Self {
            way: match options.protocol {
                Protocol::Grpc => Way::Grpc(Grpc::new(options)?),
                Protocol::HttpProtobuf => Way::Http(Box::new(Http::new(options)?)),
            },
            options: options.clone(),
        })
    }

    /// Checks that the files that the options name can be used.
    ///
    /// # Errors
    /// See [`OtlpError`].
    pub fn check(options: &OtlpOptions) -> Result<(), OtlpError> {
        Http::new(options).map(drop)
    }

    /// Sends a request, within the time that the options give.
    ///
    /// # Errors
    /// See [`SendError`].
    pub async fn send<S: Signal>(&mut self, request: S) -> Result<Accepted, SendError> {
        let limit = self.options.timeout;
        let headers = &self.options.headers;
        let sent = async {
            match &mut self.way {
                Way::Grpc(grpc) => grpc.send(request, headers).await,
                Way::Http(http) => http.send(request, headers).await,
            }
        };
        let answer = timeout(limit, sent).await;
        answer.unwrap_or_else(|_| {
            Err(SendError::Away {
                why: format!("it hasn't answered within {} ms", limit.as_millis()),
                again: None,
            })
        })
    }
}

impl fmt::Display for Sender {
    /// Shows the URL.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.options.endpoint.fmt(f)
    }
}
