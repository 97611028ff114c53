//go:build clients

package clients

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/tandem-pd/tandem/integration/cases"
)

// callTimeout is how long a client waits for a whole answer. What takes longer
// hangs: the engines need a tenth of a second for a call.
const callTimeout = 5 * time.Second

// maxLine bounds a line of a stream.
const maxLine = 1 << 20

// errHangs is that a whole answer did not come within callTimeout.
var errHangs = errors.New("hangs")

// answer is what came back of a call.
type answer struct {
	err    error    // it did not come whole, or is no HTTP
	status int      // 0 if not even the head came
	body   []byte   // of an answer that is no stream
	events [][]byte // of a stream: the data of its events, without [DONE]
	done   bool     // a stream ended with [DONE], the only one
}

// ask makes a call and reads the whole answer.
func ask(url string, body cases.Body) answer {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	a := answer{}
	response, err := open(ctx, url, body)
	if err == nil {
		defer response.Body.Close()
		a.status = response.StatusCode
		err = a.read(response)
	}
	if ctx.Err() != nil {
		err = errHangs
	}
	a.err = err
	return a
}

func open(ctx context.Context, url string, body cases.Body) (*http.Response, error) {
	marshalled, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(marshalled))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	request.Close = true // nothing is left open of a client that is gone
	return http.DefaultClient.Do(request)
}

func (a *answer) read(response *http.Response) error {
	if !strings.HasPrefix(response.Header.Get("Content-Type"), "text/event-stream") {
		var err error
		a.body, err = io.ReadAll(response.Body)
		return err
	}
	lines := bufio.NewScanner(response.Body)
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		if lines.Text() == "" {
			continue // between two events, which have one line of data each
		}
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		switch {
		case !ok:
			return fmt.Errorf("a stream with a line that is no data: %.60q", lines.Text())
		case a.done:
			return errors.New("a stream that goes on after its [DONE]")
		case data == "[DONE]":
			a.done = true
		default:
			a.events = append(a.events, []byte(data))
		}
	}
	return lines.Err()
}

// leave makes a call and leaves in its middle: a stream after two events, a
// plain call when under says that the engines are at work.
func leave(url string, body cases.Body, under func() bool) error {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	if body["stream"] == true {
		response, err := open(ctx, url, body)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		lines := bufio.NewScanner(response.Body)
		for events := 0; events < 2; {
			if !lines.Scan() {
				return errors.Join(errors.New("a stream of less than two events"), lines.Err())
			}
			if strings.HasPrefix(lines.Text(), "data: ") {
				events++
			}
		}
		return nil
	}
	ended := make(chan error, 1)
	go func() {
		response, err := open(ctx, url, body)
		if err == nil {
			response.Body.Close()
		}
		ended <- err
	}()
	working := within(callTimeout, under)
	cancel()
	err := <-ended
	switch {
	case !working:
		return errHangs
	case !errors.Is(err, context.Canceled):
		return fmt.Errorf("over before the client left: %w", err)
	default:
		return nil
	}
}

// within waits until a condition holds, and says whether it did in time.
func within(d time.Duration, ok func() bool) bool {
	for end := time.Now().Add(d); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			return false
		}
	}
	return true
}
