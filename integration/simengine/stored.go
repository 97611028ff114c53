package simengine

import (
	"net/http"
	"slices"
	"sync"
)

// maxStored bounds the answers of /v1/responses that can be read again.
const maxStored = 1024

// storedResponses are the last answers of /v1/responses, by their ids. The zero
// value is empty.
type storedResponses struct {
	mu    sync.Mutex
	m     map[string][]byte
	order []string // oldest first
}

func (s *storedResponses) put(id string, answer []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.m == nil {
		s.m = map[string][]byte{}
	}
	if s.m[id] == nil {
		if len(s.order) == maxStored {
			delete(s.m, s.order[0])
			s.order = s.order[1:]
		}
		s.order = append(s.order, id)
	}
	s.m[id] = answer
}

func (s *storedResponses) get(id string) ([]byte, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	answer, ok := s.m[id]
	return answer, ok
}

func (s *storedResponses) remove(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.m, id)
	s.order = slices.DeleteFunc(s.order, func(one string) bool { return one == id })
}

// serveStored gives an answer of /v1/responses again, or forgets it. Only the
// engine that made it has it.
func (l *life) serveStored(w http.ResponseWriter, r *http.Request, id string) {
	rec := l.e.records.arrive(r, nil, false)
	answer, ok := l.stored.get(id)
	if !ok {
		rec.done(http.StatusNotFound, "refused")
		writeJSON(w, http.StatusNotFound, mustJSON(anyMap{"error": anyMap{
			"message": "Response with id '" + id + "' not found.", "type": "invalid_request_error",
			"param": "response_id", "code": http.StatusNotFound,
		}}))
		return
	}
	rec.done(http.StatusOK, "finished")
	if r.Method == http.MethodDelete {
		l.stored.remove(id)
		answer = mustJSON(anyMap{"id": id, "object": "response", "deleted": true})
	}
	writeJSON(w, http.StatusOK, answer)
}
