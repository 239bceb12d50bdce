package gateway

import (
	"errors"
	"io"
	"net/http"
	"sync"
)

// answer sends the request to workers until one answers, and passes that answer on. It panics with http.ErrAbortHandler
// when the answer breaks off in a way that only the end of the connection can tell the client.
func (e *exchange) answer(w http.ResponseWriter) {
	response, err := e.send()
	if err != nil {
		answerError(w, err)
		return
	}
	header := w.Header()
	for _, name := range responseHeaders {
		if values := response.Header[name]; len(values) > 0 {
			header[name] = values
		}
	}
	w.WriteHeader(response.StatusCode)
	if e.buffer == nil {
		e.takeBuffer(false)
	}
	err = pass(w, response, *e.buffer)
	_ = response.Body.Close() // It was read, or nobody is left to read it.
	if err != nil {
		panic(http.ErrAbortHandler)
	}
}

// pass copies the body of an answer. What may be a stream reaches the client as it comes.
func pass(w http.ResponseWriter, response *http.Response, buffer []byte) error {
	flush := func() error { return nil }
	if response.ContentLength < 0 {
		flush = http.NewResponseController(w).Flush
	}
	for {
		n, err := response.Body.Read(buffer)
		if n > 0 {
			if _, failed := w.Write(buffer[:n]); failed != nil {
				return failed
			}
			if failed := flush(); failed != nil {
				return failed
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// first reads until there is something, or an error.
func first(body io.Reader, buffer []byte) (n int, err error) {
	for n == 0 && err == nil {
		n, err = body.Read(buffer)
	}
	return n, err
}

// begun is a body whose beginning was read, with err behind it if there was one.
type begun struct {
	io.ReadCloser

	first []byte
	err   error
}

// Read returns the beginning, which may be in p already, and then what follows.
func (b *begun) Read(p []byte) (int, error) {
	if len(b.first) > 0 {
		n := copy(p, b.first)
		if b.first = b.first[n:]; len(b.first) > 0 {
			return n, nil
		}
		return n, b.err
	}
	if b.err != nil {
		return 0, b.err
	}
	return b.ReadCloser.Read(p)
}

const (
	// wholeBytes takes few system calls for a large answer, streamBytes is many events: thousands of streams wait with
	// one each.
	wholeBytes  = 16 << 10
	streamBytes = 4 << 10
)

var (
	wholeBuffers  = sync.Pool{New: func() any { return newBuffer(wholeBytes) }}
	streamBuffers = sync.Pool{New: func() any { return newBuffer(streamBytes) }}
)

func newBuffer(size int) *[]byte {
	b := make([]byte, size)
	return &b
}

// takeBuffer gives e a buffer, which giveBuffer takes back.
func (e *exchange) takeBuffer(stream bool) {
	e.giveBuffer()
	pool := &wholeBuffers
	if stream {
		pool = &streamBuffers
	}
	e.buffer, _ = pool.Get().(*[]byte) // Nothing else is put in.
}

func (e *exchange) giveBuffer() {
	switch {
	case e.buffer == nil:
	case len(*e.buffer) == streamBytes:
		streamBuffers.Put(e.buffer)
	default:
		wholeBuffers.Put(e.buffer)
	}
	e.buffer = nil
}
