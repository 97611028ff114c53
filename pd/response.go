package pd

import (
	"io"
	"net/http"
	"sync"
)

// Response is an answer that has been committed. Body owns the exchange behind
// it: contexts, rooms, leases. Reading it to its end or closing it gives
// everything back, once.
type Response struct {
	Status int
	Header http.Header // end-to-end headers, without Content-Length
	Length int64       // of Body in bytes, -1 when unknown
	Stream bool        // Body is a stream of server-sent events
	// Body's Read ends with io.EOF only when the answer is whole. Any other
	// error means that the connection to the client must be broken, so that a
	// cut answer looks cut.
	Body io.ReadCloser
}

// endBody calls end once, when the body was read to its end or closed.
type endBody struct {
	io.ReadCloser
	once sync.Once
	end  func(err error) // nil when the body ended whole
}

func (b *endBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		b.finish(err)
	}
	return n, err
}

func (b *endBody) Close() error {
	err := b.ReadCloser.Close()
	b.finish(ErrCancelled(StageClient))
	return err
}

func (b *endBody) finish(err error) {
	b.once.Do(func() {
		if err == io.EOF {
			err = nil
		}
		b.end(err)
	})
}
