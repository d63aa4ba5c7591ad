//! The live page: one file, whole in the binary; all it shows comes by /events.

use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderName};
use axum::response::{IntoResponse, Response};

const PAGE: &str = include_str!("page.html");
/// Placeholder of the nonce in the page.
const MARK: &str = "NONCE";

/// The live page
///
/// Guests with their packet rates, who holds what since when and why, moves, pools and errors.
#[utoipa::path(
    get,
    path = "/",
    responses((status = 200, description = "One self-contained page", body = String,
               content_type = "text/html")),
)]
pub async fn page() -> Response {
    let nonce = nonce();
    // Only this page's script and style run, and it connects to its daemon alone.
    let policy = format!(
        "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; \
         connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; \
         frame-ancestors 'self'"
    );
    let headers = [
        (CONTENT_TYPE, "text/html; charset=utf-8".to_owned()),
        (CACHE_CONTROL, "no-store".to_owned()),
        (HeaderName::from_static("content-security-policy"), policy),
    ];
    (headers, PAGE.replace(MARK, &nonce)).into_response()
}

fn nonce() -> String {
    use std::hash::{BuildHasher, Hasher, RandomState};
    // Keyed anew from the system's randomness for every thread, and never the same twice.
    let half = || RandomState::new().build_hasher().finish();
    format!("{:016x}{:016x}", half(), half())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_asks_nothing_of_others() {
        for outside in ["http://", "https://", "src=", "@import", "innerHTML"] {
            let found = PAGE.replace("http://www.w3.org/2000/svg", "").contains(outside);
            assert!(!found, "{outside}");
        }
        assert_eq!(PAGE.matches(MARK).count(), 2);
        assert_ne!(nonce(), nonce());
    }
}
