//! Server-sent events. A slow reader delays nobody: it learns how many events it missed.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{RawQuery, State};
use axum::response::sse::{self, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{OwnedSemaphorePermit, broadcast, watch};

use super::{STREAMS, Shared};
use crate::daemon::request::{Event, Fault, Refused};
use crate::daemon::status::Status;

/// Interval of empty lines that keep the connection alive.
const ALIVE: Duration = Duration::from_secs(15);

struct Feed {
    shared: Arc<Shared>,
    events: broadcast::Receiver<Event>,
    status: Option<watch::Receiver<Arc<Status>>>,
    stop: watch::Receiver<bool>,
    first: bool,
    /// Held while the stream is open.
    _permit: OwnedSemaphorePermit,
}

impl Feed {
    async fn next(&mut self) -> Option<sse::Event> {
        if self.first {
            self.first = false;
            if let Some(status) = &mut self.status {
                status.mark_unchanged();
                return Some(self.status_event());
            }
            // A reader of this comment misses no later event.
            return Some(sse::Event::default().comment("listening"));
        }
        let changed = async {
            match &mut self.status {
                Some(status) => status.changed().await.is_ok(),
                None => std::future::pending().await,
            }
        };
        let stopped = async {
            drop(self.stop.wait_for(|stop| *stop).await);
        };
        tokio::select! {
            biased;
            () = stopped => self.next_pending(),
            event = self.events.recv() => match event {
                Ok(event) => Some(sse_event("event", &event)),
                Err(RecvError::Lagged(missed)) => {
                    Some(sse_event("missed", &serde_json::json!({ "missed": missed })))
                }
                Err(RecvError::Closed) => None,
            },
            alive = changed => alive.then(|| self.status_event()),
        }
    }

    /// The next event emitted before the end.
    fn next_pending(&mut self) -> Option<sse::Event> {
        self.events.try_recv().ok().map(|event| sse_event("event", &event))
    }

    fn status_event(&self) -> sse::Event {
        sse::Event::default().event("status").data(&*self.shared.status_json())
    }
}

fn sse_event(name: &str, value: &impl serde::Serialize) -> sse::Event {
    sse::Event::default().event(name).data(serde_json::to_string(value).unwrap_or_default())
}

/// What happens, from now on, as server-sent events
///
/// `event: event` carries an Event, `event: missed` says how many a slow reader missed. With
/// `?status=true` `event: status` carries the status, now and whenever it changes.
#[utoipa::path(
    get,
    path = "/events",
    params(("status" = Option<bool>, Query, description = "Tell the status, too")),
    responses(
        (status = 200, description = "A stream that ends with the daemon", body = Event,
         content_type = "text/event-stream"),
        ),
)]
pub async fn events(State(shared): State<Arc<Shared>>, RawQuery(query): RawQuery) -> Response {
    let status = match query.as_deref() {
        None | Some("" | "status=false") => None,
        Some("status=true") => Some(shared.ends.status.clone()),
        Some(_) => {
            let what = "this query is not understood";
            let remedy = "ask for /events or /events?status=true";
            return Refused::new(Fault::BadRequest, what, remedy).into_response();
        }
    };
    let Ok(permit) = shared.streams.clone().try_acquire_owned() else {
        let what = format!("{STREAMS} readers of events are there: the daemon takes no more");
        return Refused::new(Fault::Unavailable, what, "close a page or a watch").into_response();
    };
    let feed = Feed {
        events: shared.ends.events.subscribe(),
        status,
        stop: shared.stop.clone(),
        first: true,
        shared,
        _permit: permit,
    };
    let stream = stream::unfold(feed, |mut feed| async move {
        feed.next().await.map(|event| (Ok::<_, Infallible>(event), feed))
    });
    Sse::new(stream).keep_alive(KeepAlive::new().interval(ALIVE)).into_response()
}
