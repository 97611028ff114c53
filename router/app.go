package router

import (
	"cmp"
	"context"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gofiber/fiber/v2"
	"github.com/rs/zerolog"
	"github.com/valyala/fasthttp"

	"github.com/tandem-pd/tandem/pd"
)

// Bounds of a connection.
const (
	headerBytes = 16 << 10          // a request's header, else 431
	keepAlive   = 120 * time.Second // a connection without a request
)

// A Server runs one request. *pd.Orchestrator is one.
type Server interface {
	Serve(context.Context, *pd.Request) (*pd.Response, error)
	Abort(context.Context, pd.AbortRequest) (*pd.AbortResult, error)
}

// Config says what an [App] serves and within which bounds. Server, Workers and
// Transport must be set; zero means the default everywhere else.
type Config struct {
	Server  Server
	Workers func() []*pd.Worker // every worker, of all roles, in a stable order
	// WorkersOf lists the workers of the model that a body names; its errors are
	// *pd.Error. Nil takes all workers to serve every model.
	WorkersOf func(model string) ([]*pd.Worker, error)
	Transport http.RoundTripper // for info, health and fan-out calls
	// Regular says that the workers are whole engines: whatever they serve is
	// passed on, and one of them is enough to be ready.
	Regular bool
	// Trail marks what Transport and Server send, and has requests refused that come
	// back. Nil lets them.
	Trail *Trail
	// Healthy reports whether a worker can be used. It is asked from several
	// goroutines at once and may block until ctx ends. Nil asks whether the worker
	// takes a connection.
	Healthy func(ctx context.Context, w *pd.Worker) bool
	// Fleet serves /pd_role_switch and what is under /workers, which are not there
	// without it.
	Fleet Fleet
	Log   zerolog.Logger

	// APIKey is asked for, as Authorization: Bearer KEY, by every route but those
	// of health and of models and servers. With it, the client's Authorization is
	// for the router alone: workers get their own keys or none. Empty asks for none.
	APIKey string
	// Origins are the web origins whose pages may call the data endpoints and
	// what is under /v1, as browsers name them: https://app.example, or * for any.
	Origins []string

	RequestIDHeaders []string      // x-request-id, x-correlation-id, x-trace-id, request-id
	MaxPayload       int64         // bytes of one body; 512 MiB
	MaxBodyMemory    int64         // bytes of all bodies held at once; 4 GiB
	BodyIdle         time.Duration // without a byte of a request; 30 s
	WriteStall       time.Duration // a client that takes nothing; 300 s
	Settle           time.Duration // accepting on while draining; 5 s, negative for none
	Grace            time.Duration // for open requests at shutdown; 180 s, negative for none
	Version          string        // named in the Server header

	// Data requests, those of /generate, /v1/chat/completions and /v1/completions
	// and what is passed on to whole engines, go there within these bounds. Whatever
	// else is asked never waits.
	MaxConcurrent int           // requests under way at once, to the end of their answers; 0 for no bound
	QueueSize     int           // requests that wait beyond the bounds; 100, negative for none
	QueueTimeout  time.Duration // of that wait alone; 60 s
	RatePerSecond int           // requests that begin in a second; a burst is MaxConcurrent, else a second's; 0 for no bound

	// Bound is called when a named bound was hit: "body_memory", "payload_size",
	// "queue_size", "queue_timeout". It must not block.
	Bound func(name string)
}

func (cfg Config) withDefaults() Config {
	cfg.BodyIdle = cmp.Or(cfg.BodyIdle, 30*time.Second)
	cfg.WriteStall = cmp.Or(cfg.WriteStall, 300*time.Second)
	cfg.Settle = cmp.Or(cfg.Settle, 5*time.Second)
	cfg.Grace = cmp.Or(cfg.Grace, 180*time.Second)
	cfg.QueueTimeout = cmp.Or(cfg.QueueTimeout, 60*time.Second)
	cfg.QueueSize = cmp.Or(cfg.QueueSize, 100)
	cfg.MaxPayload = cmp.Or(cfg.MaxPayload, 512<<20)
	cfg.MaxBodyMemory = cmp.Or(cfg.MaxBodyMemory, 4<<30)
	if len(cfg.RequestIDHeaders) == 0 {
		cfg.RequestIDHeaders = []string{"x-request-id", "x-correlation-id", "x-trace-id", "request-id"}
	}
	if cfg.Healthy == nil {
		cfg.Healthy = reachable
	}
	if cfg.Bound == nil {
		cfg.Bound = func(string) {}
	}
	return cfg
}

// App is the HTTP server. Make one with [New], give it a listener with
// [App.Serve] and end it with [App.Shutdown].
type App struct {
	cfg       Config
	fiber     *fiber.App
	memory    budget
	admission *admission
	lock      lock
	origins   origins
	phase     atomic.Int32 // see shutdown.go
	stop      stopper
	drains    drains

	mu     sync.Mutex
	conns  map[*conn]struct{}
	visits map[*visit]struct{} // those that an engine may be working for
}

// New makes an App that does not listen yet.
func New(cfg Config) *App {
	a := &App{
		cfg:    cfg.withDefaults(),
		conns:  make(map[*conn]struct{}),
		visits: make(map[*visit]struct{}),
		stop:   newStopper(),
	}
	a.lock, a.cfg.APIKey = newLock(cfg.APIKey), "" // kept as a digest alone
	a.origins = newOrigins(cfg.Origins)
	a.memory.limit = a.cfg.MaxBodyMemory
	a.admission = newAdmission(a.cfg)
	name := "tandem"
	if a.cfg.Version != "" {
		name += "/" + a.cfg.Version
	}
	a.fiber = fiber.New(fiber.Config{
		ServerHeader:                 name,
		CaseSensitive:                true,
		StreamRequestBody:            true,
		BodyLimit:                    1, // of what is read before the handler is asked; body.go has the real limit
		ReadBufferSize:               headerBytes,
		DisablePreParseMultipartForm: true, // it would put bodies into files
		DisableDefaultContentType:    true,
		DisableStartupMessage:        true,
		ErrorHandler:                 a.unmatched,
	})
	fast := a.fiber.Server()
	fast.ConnState = a.connState
	fast.CloseOnShutdown = true
	fast.HeaderReceived = a.headerReceived
	fast.ExpectHandler = a.expect
	a.routes()
	return a
}

// Serve answers on ln until [App.Shutdown]; it then returns nil at once, while
// requests may still be under way. ln is a TCP or Unix listener, or one that
// [Watch] or [WatchTLS] made.
func (a *App) Serve(ln net.Listener) error {
	switch ln.(type) {
	case *net.TCPListener, *net.UnixListener:
		ln = Watch(ln)
	}
	if a.phase.Load() >= draining {
		return ln.Close()
	}
	return a.fiber.Listener(ln)
}

// connState follows a connection from its first to its last moment.
func (a *App) connState(nc net.Conn, state fasthttp.ConnState) {
	c := connOf(nc)
	if c == nil {
		if state == fasthttp.StateNew {
			a.cfg.Log.Error().Msg("the listener's connections are not watched; see router.Watch")
			_ = nc.Close()
		}
		return
	}
	switch state {
	case fasthttp.StateNew:
		c.patience(keepAlive)
		c.stall(a.cfg.WriteStall)
		a.mu.Lock()
		defer a.mu.Unlock()
		a.conns[c] = struct{}{}
	case fasthttp.StateActive:
		c.patience(a.cfg.BodyIdle)
	case fasthttp.StateIdle:
		c.patience(keepAlive)
	case fasthttp.StateClosed, fasthttp.StateHijacked:
		a.mu.Lock()
		defer a.mu.Unlock()
		delete(a.conns, c)
	}
}

// routes is the whole surface: public ones, and those that ask for the key if
// there is one. Other paths are 404, other methods 405.
func (a *App) routes() {
	f := a.fiber
	f.Post("/generate", a.route("generate", plain, a.data(pd.Generate)))
	f.Put("/generate", a.route("generate", plain, a.data(pd.Generate)))
	f.Post("/v1/chat/completions", a.route("chat", openAI, a.data(pd.Chat)))
	f.Post("/v1/completions", a.route("completions", openAI, a.data(pd.Completions)))

	for _, path := range []string{"/health", "/liveness", "/ping"} {
		f.Get(path, a.public(path[1:], plain, alive))
	}
	f.Get("/readiness", a.public("readiness", plain, a.readiness))
	f.Get("/health_generate", a.public("health_generate", plain, a.healthGenerate))

	f.Get("/v1/models", a.public("models", openAI, a.models))
	f.Get("/v1/models/*", a.public("model", openAI, a.model))
	for _, path := range []string{"/model_info", "/get_model_info"} {
		f.Get(path, a.public("model_info", plain, a.modelInfo))
	}
	for _, path := range []string{"/server_info", "/get_server_info"} {
		f.Get(path, a.public("server_info", plain, a.serverInfo))
	}
	f.Get("/get_loads", a.route("get_loads", plain, a.getLoads))
	f.Get("/v1/loads", a.route("loads", openAI, a.loads))

	f.Post("/flush_cache", a.route("flush_cache", plain, a.flushCache))
	f.Post("/abort_request", a.route("abort_request", plain, a.abort))
	a.fleetRoutes()
	a.workerRoutes()
	if a.cfg.Regular {
		a.regularRoutes() // last: they are for all that has no name before
	} else {
		a.pairRoutes()
	}
}
