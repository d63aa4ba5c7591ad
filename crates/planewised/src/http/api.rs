//! The HTTP API and its description in OpenAPI. The core answers.

use std::sync::Arc;
use std::sync::mpsc::TrySendError;
use std::time::Duration;

use axum::Router;
use axum::body::to_bytes;
use axum::extract::rejection::PathRejection;
use axum::extract::{FromRequestParts, Path, Request as HttpRequest, State};
use axum::http::header::{
    AUTHORIZATION, CACHE_CONTROL, CONTENT_TYPE, HOST, HeaderName, HeaderValue, ORIGIN,
    WWW_AUTHENTICATE,
};
use axum::http::request::Parts;
use axum::http::{Method, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post, put};
use pw_alloc::model::{GuestId, Stance};
use pw_alloc::settings::PolicyKind;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityScheme};
use utoipa::openapi::{Content, Ref, ResponseBuilder};
use utoipa::{Modify, OpenApi, ToSchema};

use super::listen::Door;
use super::token::{Role, Shown};
use super::{Shared, events, metrics, page};
use crate::daemon::request::{Answer, Caller, Envelope, Event, Fault, Refused, Request};
use crate::daemon::status::{Guest, Planned, Status};

/// Largest body of a request [bytes].
const BODY_BYTES: usize = 4096;
/// Time limit of a request's body.
const BODY: Duration = Duration::from_secs(10);
/// Time limit of the core's answer; then the request is withdrawn.
const ANSWER: Duration = Duration::from_secs(30);

type Outcome = std::result::Result<Response, Refused>;

/// The operator's stance on a guest.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct WishedStance {
    /// It has a VF (pinned), has none (excluded), or the policy decides (free).
    #[schema(value_type = String, pattern = "^(free|pinned|excluded)$")]
    stance: Stance,
}

/// The policy.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct WishedPolicy {
    /// Its name.
    #[schema(value_type = String, pattern = "^(fair|activity|benefit|static)$")]
    policy: PolicyKind,
}

/// Draining or not.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct WishedDrain {
    /// On: every VF returns to its pool and none is given. Off: VFs are given again.
    on: bool,
}

/// The request is done, or begun.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
struct Done {
    /// One sentence without a full stop.
    done: String,
}

#[derive(OpenApi)]
#[openapi(
    info(
        title = "planewised",
        description = "Who holds which SR-IOV virtual function on this host, and why. Served on a Unix \
                       socket to root, the daemon's own user and one group; by TCP with TLS and a token."
    ),
    paths(
        page::page,
        status,
        guest,
        plan,
        set_stance,
        unmark,
        set_policy,
        rebalance,
        set_drain,
        reload,
        events::events,
        metrics::metrics,
        description,
    ),
    components(schemas(Event)),
    modifiers(&Common),
)]
struct Description;

/// Describes what all requests have in common: a token by TCP, and the answer where they fail.
struct Common;

impl Modify for Common {
    fn modify(&self, openapi: &mut utoipa::openapi::OpenApi) {
        let problem = Content::new(Some(Ref::from_schema_name("Problem")));
        let failed = ResponseBuilder::new()
            .description("It could not be done")
            .content("application/json", problem)
            .build();
        for path in openapi.paths.paths.values_mut() {
            let operations = [&mut path.get, &mut path.put, &mut path.post, &mut path.delete];
            for operation in operations.into_iter().flatten() {
                operation.responses.responses.insert("default".into(), failed.clone().into());
            }
        }
        let components = openapi.components.get_or_insert_default();
        let bearer = SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer));
        components.add_security_scheme("token", bearer);
        openapi.servers = None;
    }
}

/// The API's description.
pub fn openapi() -> utoipa::openapi::OpenApi {
    Description::openapi()
}

/// All routes.
pub fn router(shared: Arc<Shared>) -> Router {
    Router::new()
        .route("/", get(page::page))
        .route("/status", get(status))
        .route("/guests/{guest}", get(guest))
        .route("/plan", get(plan))
        .route("/guests/{guest}/stance", put(set_stance))
        .route("/guests/{guest}/mark", delete(unmark))
        .route("/policy", put(set_policy))
        .route("/rebalance", post(rebalance))
        .route("/drain", put(set_drain))
        .route("/reload", post(reload))
        .route("/events", get(events::events))
        .route("/metrics", get(metrics::metrics))
        .route("/openapi.json", get(description))
        .fallback(no_such_path)
        .method_not_allowed_fallback(no_such_method)
        .layer(from_fn_with_state(shared.clone(), guard))
        .with_state(shared)
}

async fn no_such_path() -> Refused {
    Refused::new(Fault::NotFound, "there is nothing at this path", "/openapi.json lists all paths")
}

async fn no_such_method() -> Refused {
    Refused::new(
        Fault::BadRequest,
        "this path has no such method",
        "/openapi.json lists all methods",
    )
    .with_status(405)
}

/// Authenticates the caller; every request passes here first.
async fn guard(
    State(shared): State<Arc<Shared>>,
    mut request: HttpRequest,
    next: Next,
) -> Response {
    let reads = matches!(*request.method(), Method::GET | Method::HEAD);
    let caller = match request.extensions().get::<Door>() {
        Some(Door::Socket(caller)) => caller.clone(),
        Some(Door::Refused(problem)) => return problem.clone().into_response(),
        Some(Door::Tls(keys)) => match keys.tokens().owner(request.headers()) {
            Some((name, Shown::Bearer, Role::Order)) => Caller::Token(name),
            Some((name, _, _)) if reads => Caller::Token(name),
            Some((_, _, Role::Read)) => {
                let what = "this token is good for reading only";
                let remedy = "use one whose line in tcp.tokens has the role `order`";
                return Refused::new(Fault::Forbidden, what, remedy).into_response();
            }
            Some(_) => {
                let what = "a browser's login is good for reading only";
                let remedy = "send the token as `Authorization: Bearer TOKEN`";
                return Refused::new(Fault::Forbidden, what, remedy).into_response();
            }
            None => {
                if shared.log_refusal() {
                    let shown = request.headers().contains_key(AUTHORIZATION);
                    tracing::warn!(shown, "a request by TCP without a valid token was refused");
                }
                return without_token();
            }
        },
        None => return unknown_caller().into_response(),
    };
    // Another site's page in an authorised user's browser (CSRF).
    if !reads && !of_same_origin(&request) {
        let what = "this request comes from another site's page";
        return Refused::new(Fault::Forbidden, what, "use `planewise alloc`").into_response();
    }
    tracing::debug!(%caller, method = %request.method(), path = request.uri().path(), "request");
    request.extensions_mut().insert(caller);
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    let nosniff = HeaderValue::from_static("nosniff");
    headers.insert(HeaderName::from_static("x-content-type-options"), nosniff);
    response
}

/// The answer to a request that fails: one sentence and a remedy, as JSON.
impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let by_fault = match self.fault {
            Fault::BadRequest => StatusCode::BAD_REQUEST,
            Fault::Forbidden => StatusCode::FORBIDDEN,
            Fault::NotFound => StatusCode::NOT_FOUND,
            Fault::Conflict => StatusCode::CONFLICT,
            Fault::Failed => StatusCode::INTERNAL_SERVER_ERROR,
            Fault::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        };
        let code = self.status.and_then(|status| StatusCode::from_u16(status).ok());
        (code.unwrap_or(by_fault), json(&self)).into_response()
    }
}

fn without_token() -> Response {
    let problem = Refused::new(
        Fault::Forbidden,
        "this request shows no valid token",
        "send `Authorization: Bearer TOKEN` with one of the daemon's tokens; a browser: any user name, \
         and the token as the password",
    )
    .with_status(401);
    let schemes = HeaderValue::from_static("Basic realm=\"planewised\", Bearer");
    let mut response = problem.into_response();
    response.headers_mut().insert(WWW_AUTHENTICATE, schemes);
    response
}

fn of_same_origin(request: &HttpRequest) -> bool {
    let Some(origin) = request.headers().get(ORIGIN) else { return true };
    let authority =
        origin.to_str().ok().and_then(|origin| origin.split_once("://")).map(|(_, at)| at);
    let host = request.headers().get(HOST).and_then(|host| host.to_str().ok());
    authority.is_some() && authority == host
}

fn json(value: &impl Serialize) -> Response {
    json_text(serde_json::to_string(value).unwrap_or_default())
}

fn json_text(text: String) -> Response {
    ([(CONTENT_TYPE, HeaderValue::from_static("application/json"))], text).into_response()
}

/// The body as JSON of that shape.
async fn body<T: DeserializeOwned>(request: HttpRequest, example: &str) -> Result<T, Refused> {
    let remedy = || format!("send JSON like {example}");
    let read = to_bytes(request.into_body(), BODY_BYTES);
    let bytes = match tokio::time::timeout(BODY, read).await {
        Ok(Ok(bytes)) => bytes,
        Ok(Err(_)) => {
            let what = format!("the body is larger than {BODY_BYTES} bytes");
            return Err(Refused::new(Fault::BadRequest, what, remedy()).with_status(413));
        }
        Err(_) => {
            let what = format!("the body did not come within {} s", BODY.as_secs());
            let problem = Refused::new(Fault::BadRequest, what, remedy());
            return Err(problem.with_status(408));
        }
    };
    serde_json::from_slice(&bytes).map_err(|error| {
        Refused::new(Fault::BadRequest, format!("the body is not understood: {error}"), remedy())
    })
}

type GuestPath = Result<Path<String>, PathRejection>;

/// The guest that the path names.
fn named_guest(path: GuestPath) -> Result<GuestId, Refused> {
    path.map(|Path(name)| GuestId::from(name)).map_err(|_| {
        let what = "the guest's name in this path is no text";
        Refused::new(Fault::BadRequest, what, "write it percent-encoded, in UTF-8")
    })
}

/// Sends the core a request and waits for its answer.
async fn ask(shared: &Shared, caller: Caller, request: Request) -> Result<Answer, Refused> {
    let unavailable = |what: &str, remedy: &str| Refused::new(Fault::Unavailable, what, remedy);
    let (reply, answer) = oneshot::channel();
    let (name, guest) = (request.name(), request.guest().cloned());
    let who = caller.to_string();
    shared.ends.requests.try_send(Envelope { request, caller, reply }).map_err(
        |error| match error {
            TrySendError::Full(_) => unavailable(
                "the daemon is busy and has a queue of requests",
                "try again in a while",
            ),
            TrySendError::Disconnected(_) => {
                unavailable("the daemon is stopping", "start it again: systemctl start planewised")
            }
        },
    )?;
    let outcome = match tokio::time::timeout(ANSWER, answer).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(_)) => Err(unavailable(
            "the daemon stops and did not perform the request",
            "start it again and ask again",
        )),
        Err(_) => Err(unavailable(
            "the daemon is busy with a move and did not take the request: it is withdrawn",
            "see what it does with `planewise alloc status`, then ask again",
        )),
    };
    // The core logs requests that it performs.
    if let Err(problem) = &outcome {
        let guest = guest.map(|guest| guest.to_string()).unwrap_or_default();
        tracing::warn!(request = name, guest, caller = who, why = problem.what, "not done");
    }
    outcome
}

/// The core, for one caller.
struct Core {
    shared: Arc<Shared>,
    caller: Caller,
}

impl FromRequestParts<Arc<Shared>> for Core {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, shared: &Arc<Shared>) -> Result<Self, Refused> {
        let caller = parts.extensions.get().cloned().ok_or_else(unknown_caller)?;
        Ok(Self { shared: Arc::clone(shared), caller })
    }
}

impl Core {
    /// Sends the core a request; its answer as JSON.
    async fn order(self, request: Request) -> Outcome {
        Ok(match ask(&self.shared, self.caller, request).await? {
            Answer::Plan(plan) => json(&plan),
            Answer::Done(done) => json(&Done { done }),
        })
    }
}

fn unknown_caller() -> Refused {
    Refused::new(Fault::Forbidden, "the caller is unknown", "")
}

/// Everything that the daemon knows
#[utoipa::path(get, path = "/status",
    responses((status = 200, description = "The status", body = Status)))]
async fn status(State(shared): State<Arc<Shared>>) -> Response {
    json_text(shared.status_json().as_ref().to_owned())
}

/// One guest
#[utoipa::path(get, path = "/guests/{guest}",
    params(("guest" = String, Path, description = "Its name")),
    responses(
        (status = 200, description = "The guest", body = Guest),
        (status = 404, description = "There is no such guest", body = Refused),
    ))]
async fn guest(State(shared): State<Arc<Shared>>, path: GuestPath) -> Outcome {
    let name = named_guest(path)?;
    let status = shared.ends.status.borrow().clone();
    let guest = status.guests.iter().find(|guest| guest.id == name);
    guest.map(json).ok_or_else(|| Refused::unknown_guest(&name))
}

/// What would be done now
#[utoipa::path(get, path = "/plan",
    responses((status = 200, description = "The plan; nothing is done", body = Planned)))]
async fn plan(core: Core) -> Outcome {
    core.order(Request::Plan).await
}

/// Pin a guest to a VF, exclude it from VFs, or leave it to the policy
#[utoipa::path(put, path = "/guests/{guest}/stance", request_body = WishedStance,
    params(("guest" = String, Path, description = "Its name")),
    responses(
        (status = 200, description = "It is done", body = Done),
        (status = 404, description = "There is no such guest", body = Refused),
    ))]
async fn set_stance(core: Core, path: GuestPath, request: HttpRequest) -> Outcome {
    let guest = named_guest(path)?;
    let wished: WishedStance = body(request, r#"{"stance": "pinned"}"#).await?;
    core.order(Request::Stance { guest, stance: wished.stance }).await
}

/// Say that a marked guest is well again
#[utoipa::path(delete, path = "/guests/{guest}/mark",
    params(("guest" = String, Path, description = "Its name")),
    responses(
        (status = 200, description = "It is done", body = Done),
        (status = 404, description = "There is no such guest", body = Refused),
    ))]
async fn unmark(core: Core, path: GuestPath) -> Outcome {
    let guest = named_guest(path)?;
    core.order(Request::Unmark { guest }).await
}

/// Set who ranks first
#[utoipa::path(put, path = "/policy", request_body = WishedPolicy,
    responses((status = 200, description = "It is done", body = Done)))]
async fn set_policy(core: Core, request: HttpRequest) -> Outcome {
    let wished: WishedPolicy = body(request, r#"{"policy": "benefit"}"#).await?;
    core.order(Request::Policy { policy: wished.policy }).await
}

/// Decide now, and perform the plan
#[utoipa::path(post, path = "/rebalance",
    responses((status = 200, description = "The plan that is being performed", body = Planned)))]
async fn rebalance(core: Core) -> Outcome {
    core.order(Request::Rebalance).await
}

/// Take every VF back and give none, or go on as usual
#[utoipa::path(put, path = "/drain", request_body = WishedDrain,
    responses((status = 200, description = "It is done, or begun", body = Done)))]
async fn set_drain(core: Core, request: HttpRequest) -> Outcome {
    let wished: WishedDrain = body(request, r#"{"on": true}"#).await?;
    core.order(Request::Drain { on: wished.on }).await
}

/// Read the configuration again
#[utoipa::path(post, path = "/reload",
    responses((status = 200, description = "It is done", body = Done)))]
async fn reload(core: Core) -> Outcome {
    core.order(Request::Reload).await
}

/// This description
#[utoipa::path(get, path = "/openapi.json", responses((status = 200, description = "OpenAPI 3.1")))]
async fn description() -> Response {
    json(&openapi())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_description_names_every_policy() {
        let description = serde_json::to_value(openapi()).expect("a document");
        let names = PolicyKind::ALL.map(PolicyKind::as_str).join("|");
        for schema in ["Status", "WishedPolicy"] {
            let policy = &description["components"]["schemas"][schema]["properties"]["policy"];
            assert_eq!(policy["pattern"], format!("^({names})$"), "{schema}");
        }
    }

    /// Nobody takes requests here; the clock is made up.
    #[tokio::test(start_paused = true)]
    async fn a_request_that_is_not_taken_within_30_s_is_withdrawn_and_never_performed() {
        let first = Status::new(PolicyKind::Benefit, 10.0, 1.0);
        let (core, ends) = crate::daemon::request::ends(first);
        let (_stop, stopped) = tokio::sync::watch::channel(false);
        let shared = Shared::new(ends, stopped);
        let caller = Caller::Local { uid: 0, pid: None };
        let mut asked = Box::pin(ask(&shared, caller, Request::Drain { on: true }));
        let begun = tokio::time::Instant::now();
        let early = tokio::time::timeout(Duration::from_secs(29), asked.as_mut()).await;
        assert!(early.is_err(), "it still waits");
        let envelope = core.requests.try_recv().expect("it was asked");
        assert!(!envelope.is_abandoned());
        let problem = asked.as_mut().await.expect_err("nobody answered");
        assert_eq!(begun.elapsed().as_secs(), 30);
        assert_eq!(problem.fault, Fault::Unavailable);
        assert!(problem.what.ends_with("it is withdrawn"), "{}", problem.what);
        // The core asks that before it does anything.
        assert!(envelope.is_abandoned());
    }
}
