//! The answer to a request that fails: one sentence and a remedy, as JSON.

use axum::http::StatusCode;
use axum::http::header::{CONTENT_TYPE, HeaderValue};
use axum::response::{IntoResponse, Response};

use crate::daemon::request::{Fault, Refused};

/// The status code of this refusal.
fn status(refused: &Refused) -> StatusCode {
    let more_specific = refused.status.and_then(|status| StatusCode::from_u16(status).ok());
    more_specific.unwrap_or(match refused.fault {
        Fault::BadRequest => StatusCode::BAD_REQUEST,
        Fault::Forbidden => StatusCode::FORBIDDEN,
        Fault::NotFound => StatusCode::NOT_FOUND,
        Fault::Conflict => StatusCode::CONFLICT,
        Fault::Failed => StatusCode::INTERNAL_SERVER_ERROR,
        Fault::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
    })
}

/// The whole HTTP response, for a connection that reads no more requests.
pub fn raw(refused: &Refused) -> String {
    let body = serde_json::to_string(refused).unwrap_or_default();
    format!(
        "HTTP/1.1 {}\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        status(refused),
        body.len()
    )
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let json = HeaderValue::from_static("application/json");
        let body = serde_json::to_string(&self).unwrap_or_default();
        (status(&self), [(CONTENT_TYPE, json)], body).into_response()
    }
}
