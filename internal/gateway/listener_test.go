package gateway

import (
	"io"
	"net"
	"os"
	"testing"
	"time"
)

// counted counts the deadlines for reading that reach a connection.
type counted struct {
	*net.TCPConn

	deadlines int
}

func (c *counted) SetReadDeadline(t time.Time) error {
	c.deadlines++
	return c.TCPConn.SetReadDeadline(t)
}

func clientPair(t *testing.T) (client *net.TCPConn, inner *counted, conn *clientConn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	accepted, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close(); _ = accepted.Close() })
	inner = &counted{TCPConn: accepted.(*net.TCPConn)}
	return c.(*net.TCPConn), inner, &clientConn{Conn: inner}
}

func TestADeadlineIsSetOnceSomebodyReads(t *testing.T) {
	client, inner, conn := clientPair(t)
	set := func(deadline time.Time) {
		t.Helper()
		if err := conn.SetReadDeadline(deadline); err != nil {
			t.Fatal(err)
		}
	}
	var b [1]byte
	set(time.Now().Add(time.Hour))
	set(time.Unix(1, 0))
	if inner.deadlines != 0 {
		t.Errorf("%d were set before the first read", inner.deadlines)
	}
	for range 2 {
		if _, err := conn.Read(b[:]); !os.IsTimeout(err) {
			t.Fatalf("a read after its deadline: %v", err)
		}
	}
	if inner.deadlines != 1 {
		t.Errorf("one deadline was set %d times", inner.deadlines)
	}
	set(time.Time{})
	if _, err := client.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Read(b[:]); err != nil || b[0] != 'x' {
		t.Errorf("%q, %v without a deadline", b, err)
	}
}

// net/http ends its read for the client's leaving so, whether it has begun or is about to.
func TestADeadlineEndsAReadThatIsUnderWay(t *testing.T) {
	_, _, conn := clientPair(t)
	for range 300 {
		done := make(chan error, 1)
		go func() {
			_, err := conn.Read(make([]byte, 1))
			done <- err
		}()
		if err := conn.SetReadDeadline(time.Unix(1, 0)); err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-done:
			if !os.IsTimeout(err) {
				t.Fatal(err)
			}
		case <-time.After(20 * time.Second):
			t.Fatal("the read goes on")
		}
		if err := conn.SetDeadline(time.Time{}); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAnAnswerIsReadThoughItsConnectionCloses(t *testing.T) {
	client, _, conn := clientPair(t)
	if _, err := io.WriteString(conn, "bye"); err != nil {
		t.Fatal(err)
	}
	if err := conn.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if text, err := io.ReadAll(client); err != nil || string(text) != "bye" {
		t.Fatalf("%q, %v", text, err)
	}
	if _, err := client.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Read(make([]byte, 1)); err != nil {
		t.Errorf("half of it is closed, and reading fails: %v", err)
	}
}
