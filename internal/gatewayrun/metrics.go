package gatewayrun

import (
	"context"
	"errors"
	"net"
	"net/http"
	"time"
)

const (
	readHeaderTimeout = 5 * time.Second
	writeTimeout      = 30 * time.Second
)

// serveMetrics answers /metrics on l, if there is one, until ctx ends.
func serveMetrics(ctx context.Context, l net.Listener, handler http.Handler) error {
	if l == nil {
		return nil
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", handler)
	server := &http.Server{Handler: mux, ReadHeaderTimeout: readHeaderTimeout, WriteTimeout: writeTimeout}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() }) // A scrape that is cut is made again.
	defer stop()
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
