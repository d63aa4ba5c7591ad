//! The answer to a request that fails: one sentence and a remedy, as JSON.

use axum::http::StatusCode;
use axum::http::header::{CONTENT_TYPE, HeaderValue};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use crate::daemon::request::{Fault, Refused};

/// A failed request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct Problem {
    #[serde(skip)]
    status: StatusCode,
    /// The kind of refusal.
    pub fault: Fault,
    /// What failed, one sentence.
    pub what: String,
    /// What to do about it.
    pub remedy: String,
}

impl Problem {
    /// A problem of that kind.
    pub fn new(fault: Fault, what: impl Into<String>, remedy: impl Into<String>) -> Self {
        let status = match fault {
            Fault::BadRequest => StatusCode::BAD_REQUEST,
            Fault::Forbidden => StatusCode::FORBIDDEN,
            Fault::NotFound => StatusCode::NOT_FOUND,
            Fault::Conflict => StatusCode::CONFLICT,
            Fault::Failed => StatusCode::INTERNAL_SERVER_ERROR,
            Fault::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        };
        Self { status, fault, what: what.into(), remedy: remedy.into() }
    }

    /// The same with a more specific status code.
    #[must_use]
    pub const fn with_status(mut self, status: StatusCode) -> Self {
        self.status = status;
        self
    }

    /// As JSON.
    pub fn json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// The whole HTTP response, for a connection that reads no more requests.
    pub fn raw(&self) -> String {
        let body = self.json();
        let reason = self.status.canonical_reason().unwrap_or_default();
        format!(
            "HTTP/1.1 {} {reason}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\
             connection: close\r\n\r\n{body}",
            self.status.as_u16(),
            body.len()
        )
    }
}

impl From<Refused> for Problem {
    fn from(refused: Refused) -> Self {
        Self::new(refused.fault, refused.what, refused.remedy)
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let json = HeaderValue::from_static("application/json");
        (self.status, [(CONTENT_TYPE, json)], self.json()).into_response()
    }
}
