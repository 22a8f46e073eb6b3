//! Traces to an OpenTelemetry collector, by OTLP over gRPC. What goes to it is queued, and sent by threads of its own:
//! a collector that is slow or away costs spans, not time.

use std::fmt;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use opentelemetry::trace::{Link, SpanKind, TraceContextExt, TraceId};
use opentelemetry::{Context, KeyValue};
use opentelemetry_otlp::{SpanExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{
    Sampler, SamplingDecision, SamplingResult, SdkTracerProvider, ShouldSample,
    TracerProviderBuilder,
};
use tokio::sync::oneshot;

use crate::trace::{Tracer, key};
use crate::who;

/// The variable with a collector's address that OpenTelemetry's own programs know too.
pub const ENDPOINT_VARIABLE: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";

/// The time to send queued spans when the process ends.
const LAST: Duration = Duration::from_secs(2);

/// The destination of a process's spans.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// The collector, for example `http://collector:4317`.
    pub endpoint: String,
    /// Of a server: the part of the traces sampled by clients that it exports, from 0 to 1. It is chosen by the trace's
    /// id, so that servers with the same ratio export the same traces.
    pub ratio: f64,
}

impl Settings {
    /// This part of what clients sample, to this collector, if there is one: an empty variable names none.
    pub fn of(endpoint: Option<String>, ratio: f64) -> Option<Self> {
        let endpoint = endpoint.filter(|endpoint| !endpoint.is_empty())?;
        Some(Self { endpoint, ratio })
    }

    /// All of it, to the collector that the environment names, if it does.
    pub fn of_environment() -> Option<Self> {
        Self::of(std::env::var(ENDPOINT_VARIABLE).ok(), 1.0)
    }
}

/// [`Settings::ratio`], as a person writes it.
///
/// # Errors
/// It is no number from 0 to 1.
pub fn ratio(text: &str) -> Result<f64, String> {
    let ratio = text.parse().ok();
    ratio
        .filter(|ratio| (0.0..=1.0).contains(ratio))
        .ok_or_else(|| "it is a number from 0 to 1, as 0.01 for one in a hundred".to_owned())
}

/// An error of starting the export of spans.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The setting is not one.
    #[error(
        "traces can't be sent to {endpoint:?}: {why}; it is written as in http://127.0.0.1:4317"
    )]
    Endpoint {
        /// The setting.
        endpoint: String,
        /// The reason.
        why: String,
    },
    /// The system gives no thread.
    #[error("no thread to send traces from: {0}")]
    Thread(std::io::Error),
}

/// Sends spans until it is dropped, and then for a moment what is queued.
pub struct Exporter {
    provider: SdkTracerProvider,
    /// Dropped before the thread is waited for.
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl fmt::Debug for Exporter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Exporter").finish_non_exhaustive()
    }
}

impl Exporter {
    /// Of a server of this role and name: it exports traces that its clients sample.
    ///
    /// # Errors
    /// [`Error`]; a collector that is not there is none.
    pub fn of_server(settings: &Settings, role: &'static str, server: &str) -> Result<Self, Error> {
        let sampler = OfClients(Sampler::TraceIdRatioBased(settings.ratio));
        let provider = SdkTracerProvider::builder().with_sampler(sampler);
        let about = [
            KeyValue::new("service.instance.id", server.to_owned()),
            KeyValue::new(key::SERVER, server.to_owned()),
        ];
        Self::start(settings, provider, role, &about)
    }

    /// Of a client. Which transactions it samples is the environment's to say (`OTEL_TRACES_SAMPLER`); all, if it
    /// says nothing.
    ///
    /// # Errors
    /// As [`Self::of_server`].
    pub fn of_client(settings: &Settings) -> Result<Self, Error> {
        Self::start(settings, SdkTracerProvider::builder(), "client", &[])
    }

    /// For [`Tracer::of`].
    pub fn provider(&self) -> &SdkTracerProvider {
        &self.provider
    }

    /// Makes spans that it sends.
    pub fn tracer(&self) -> Tracer {
        Tracer::of(&self.provider)
    }

    fn start(
        settings: &Settings,
        provider: TracerProviderBuilder,
        role: &'static str,
        about: &[KeyValue],
    ) -> Result<Self, Error> {
        let endpoint_error = |why: String| Error::Endpoint {
            endpoint: settings.endpoint.clone(),
            why,
        };
        if !settings.endpoint.contains("://") {
            return Err(endpoint_error("it names no scheme".to_owned()));
        }
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(Error::Thread)?;
        let resource = Resource::builder()
            .with_service_name(format!("percolator-{role}"))
            .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
            .with_attribute(KeyValue::new(key::ROLE, role))
            .with_attributes(about.iter().cloned())
            .build();
        let endpoint = settings.endpoint.clone();
        let (stop, stopped) = oneshot::channel::<()>();
        let (made, is_made) = mpsc::sync_channel(1);
        // A connection lives on the runtime that it was made on, which must not be a server's.
        let thread = std::thread::Builder::new()
            .name("otlp".into())
            .spawn(who::inherited(move || {
                runtime.block_on(async {
                    let exporter = SpanExporter::builder()
                        .with_tonic()
                        .with_endpoint(endpoint)
                        .build();
                    let _ = made.send(exporter);
                    let _ = stopped.await;
                });
            }))
            .map_err(Error::Thread)?;
        let exporter = is_made
            .recv()
            .map_err(|error| endpoint_error(error.to_string()))?
            .map_err(|error| endpoint_error(error.to_string()))?;
        let provider = provider
            .with_resource(resource)
            .with_batch_exporter(exporter)
            .build();
        Ok(Self {
            provider,
            stop: Some(stop),
            thread: Some(thread),
        })
    }
}

/// Samples, of the traces that clients have begun, those that this one samples. A server begins none.
#[derive(Clone, Debug)]
struct OfClients(Sampler);

impl ShouldSample for OfClients {
    fn should_sample(
        &self,
        parent: Option<&Context>,
        trace: TraceId,
        name: &str,
        kind: &SpanKind,
        attributes: &[KeyValue],
        links: &[Link],
    ) -> SamplingResult {
        let mut sampled = self
            .0
            .should_sample(parent, trace, name, kind, attributes, links);
        let is_begun = |parent: &Context| parent.span().span_context().is_valid();
        if !parent.is_some_and(is_begun) {
            sampled.decision = SamplingDecision::Drop;
        }
        sampled
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        // What could not be sent is lost with the process.
        let _ = self.provider.shutdown_with_timeout(LAST);
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::Remote;

    #[test]
    fn what_is_no_address_of_a_collector_is_refused_with_the_setting() {
        for endpoint in ["localhost:4317", "https://collector:4317", "http://"] {
            let settings = Settings::of(Some(endpoint.into()), 1.0).unwrap();
            let error = Exporter::of_client(&settings).unwrap_err().to_string();
            assert!(error.contains(&format!("{endpoint:?}")), "{error}");
            assert!(error.contains("as in http://127.0.0.1:4317"), "{error}");
        }
    }

    #[test]
    fn a_collector_that_is_not_there_is_no_error() {
        let settings = Settings::of(Some("http://127.0.0.1:9".into()), 1.0).unwrap();
        let exporter = Exporter::of_client(&settings).unwrap();
        assert!(exporter.tracer().root("transaction").is_some());
    }

    #[test]
    fn a_server_goes_on_with_traces_and_begins_none() {
        let exporter = |ratio| {
            let settings = Settings::of(Some("http://127.0.0.1:9".into()), ratio).unwrap();
            Exporter::of_server(&settings, "proxy", "proxy-0").unwrap()
        };
        let call = Remote {
            trace_id: 7,
            span_id: 8,
        };
        let all = exporter(1.0);
        assert!(all.tracer().root("transaction").is_none());
        assert!(all.tracer().called("transaction", call).is_some());
        let none = Remote {
            trace_id: 0,
            span_id: 0,
        };
        assert!(all.tracer().called("transaction", none).is_none());
        let none = exporter(0.0);
        assert!(none.tracer().called("transaction", call).is_none());
    }
}
