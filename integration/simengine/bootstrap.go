package simengine

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strconv"
)

// serveBootstrap is the bootstrap server of a prefill: it tells decodes how the
// prefill is laid out and where its ranks are. It asks for no key.
func (l *life) serveBootstrap(f *front, w http.ResponseWriter, r *http.Request) {
	if !l.enter() {
		panic(http.ErrAbortHandler)
	}
	defer l.wg.Done()
	if !l.pass() {
		panic(http.ErrAbortHandler)
	}
	if BootstrapState(l.e.boot.Load()) == BootstrapDown {
		if c, ok := r.Context().Value(connKey{}).(net.Conn); ok {
			resetConn(c)
		}
		panic(http.ErrAbortHandler)
	}
	w.Header().Set("Server", "Python/3.11 aiohttp/3.12")
	switch r.URL.Path {
	case "/health":
		writeText(w, http.StatusOK, "OK")
	case "/route":
		l.serveRoute(f, w, r)
	case "/register_dp_rank":
		l.serveRegisterRank(w, r)
	case "/query_dp_ranks":
		l.serveQueryRanks(w, r)
	default:
		writeText(w, http.StatusNotFound, "404: Not Found")
	}
}

func (l *life) serveRoute(f *front, w http.ResponseWriter, r *http.Request) {
	switch r.Method {
	case http.MethodPut:
		writeText(w, http.StatusOK, "OK") // this engine's ranks are registered from the start
		return
	case http.MethodGet:
	default:
		writeText(w, http.StatusMethodNotAllowed, "Method not allowed")
		return
	}
	var query [4]int
	for i, name := range []string{"prefill_dp_rank", "prefill_cp_rank", "target_tp_rank", "target_pp_rank"} {
		n, err := strconv.Atoi(r.URL.Query().Get(name))
		if err != nil {
			writeText(w, http.StatusBadRequest, "Missing inputs for bootstrap server.")
			return
		}
		query[i] = n
	}
	if !f.registered.Load() || BootstrapState(l.e.boot.Load()) == BootstrapUnregistered {
		writeText(w, http.StatusServiceUnavailable, "Prefill server not fully registered yet (0 workers registered).")
		return
	}
	if query == [4]int{-1, -1, -1, -1} {
		l.writeTopology(w)
		return
	}
	if query[0] < 0 || query[0] >= l.cfg.DPSize || query[1] != 0 || query[2] != 0 || query[3] != 0 {
		writeText(w, http.StatusNotFound, "Bootstrap info not found")
		return
	}
	// The rank is at the address where this caller has found its bootstrap server.
	host := "127.0.0.1"
	if local, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr); ok {
		host = local.IP.String()
	}
	writeJSON(w, http.StatusOK, fmt.Appendf(nil, `{"rank_ip":%q,"rank_port":%d}`, host, f.rankPort))
}

func (l *life) writeTopology(w http.ResponseWriter) {
	writeJSON(w, http.StatusOK, fmt.Appendf(nil, `{"attn_tp_size":1,"attn_cp_size":1,"dp_size":%d,"pp_size":1,"page_size":%d,`+
		`"kv_cache_dtype":"auto","follow_bootstrap_room":%t,"enable_dsa_cache_layer_split":false,"prefill_http_port":%d,`+
		`"target_tp_rank":null,"target_tp_ranks":null,"target_cp_ranks":null,"target_pp_ranks":null,`+
		`"required_dst_info_num":null,"required_prefill_response_num":null}`,
		l.cfg.DPSize, l.cfg.PageSize, l.cfg.LoadBalance == FollowBootstrapRoom, portOf(l.addr)))
}

func (l *life) serveRegisterRank(w http.ResponseWriter, r *http.Request) {
	var body struct {
		Room json.Number `json:"bootstrap_room"`
		Rank int         `json:"dp_rank"`
	}
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<20)).Decode(&body); err != nil {
		writeText(w, http.StatusBadRequest, "Missing inputs for bootstrap server.")
		return
	}
	l.dpRanks.register(Room(body.Room), body.Rank)
	writeText(w, http.StatusOK, "OK")
}

func (l *life) serveQueryRanks(w http.ResponseWriter, r *http.Request) {
	var body struct {
		Rooms []json.Number `json:"bootstrap_rooms"`
	}
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<20)).Decode(&body); err != nil {
		writeText(w, http.StatusBadRequest, "Missing inputs for bootstrap server.")
		return
	}
	ranks := map[string]int{}
	for _, room := range body.Rooms {
		if rank, ok := l.dpRanks.find(Room(room)); ok {
			ranks[room.String()] = rank
		}
	}
	writeJSON(w, http.StatusOK, mustJSON(ranks))
}
