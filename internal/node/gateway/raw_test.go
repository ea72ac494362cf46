package gateway

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/quic-go/qpack"
	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/quicvarint"
)

// The types of frames of HTTP/3 (RFC 9114, section 7.2).
const (
	dataFrame    = 0
	headersFrame = 1
)

// secured shakes hands over TCP. The caller closes the connection.
func (b *both) secured(protocol, serverName string) (*tls.Conn, error) {
	c, err := tls.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(int(b.port))), &tls.Config{
		ServerName: serverName, InsecureSkipVerify: true, NextProtos: []string{protocol},
	})
	if err == nil {
		_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	}
	return c, err
}

// rawHTTP1 sends bytes, and returns the status and the body of the answer. They are 0 and "" if the
// gateway closes the connection without an answer, as it does if it misses a certificate of the client.
func rawHTTP1(c *tls.Conn, request string) (status int, body string, err error) {
	if _, err := io.WriteString(c, request); err != nil {
		return 0, "", nil
	}
	text, err := io.ReadAll(c)
	if err != nil || len(text) == 0 {
		return 0, "", nil
	}
	answer, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(text)), nil)
	if err != nil {
		return 0, "", fmt.Errorf("read answer %q: %w", text, err)
	}
	defer answer.Body.Close()
	read, err := io.ReadAll(answer.Body)
	return answer.StatusCode, string(read), err
}

// rawHTTP3 sends a request of HTTP/3 with header fields that no client library sends: names and values, in the
// order in which they are sent. It returns the status and the body of the answer.
func (b *both) rawHTTP3(serverName string, fields ...string) (status int, body string, err error) {
	ctx, cancel := context.WithTimeout(b.Context(), 20*time.Second)
	defer cancel()
	config := &tls.Config{ServerName: serverName, InsecureSkipVerify: true, NextProtos: []string{"h3"}}
	conn, err := quic.DialAddr(ctx, net.JoinHostPort("127.0.0.1", strconv.Itoa(int(b.port))), config, nil)
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = conn.CloseWithError(0, "") }()
	stream, err := conn.OpenStreamSync(ctx)
	if err != nil {
		return 0, "", err
	}
	_ = stream.SetDeadline(time.Now().Add(20 * time.Second))
	var block bytes.Buffer
	encoder := qpack.NewEncoder(&block)
	for i := 0; i < len(fields); i += 2 {
		if err := encoder.WriteField(qpack.HeaderField{Name: fields[i], Value: fields[i+1]}); err != nil {
			return 0, "", err
		}
	}
	frame := quicvarint.Append(quicvarint.Append(nil, headersFrame), uint64(block.Len()))
	if _, err := stream.Write(append(frame, block.Bytes()...)); err != nil {
		return 0, "", err
	}
	if err := stream.Close(); err != nil {
		return 0, "", err
	}
	return readHTTP3(stream)
}

// readHTTP3 reads the frames of an answer.
func readHTTP3(stream io.Reader) (status int, body string, err error) {
	for frames := quicvarint.NewReader(stream); ; {
		kind, err := quicvarint.Read(frames)
		if errors.Is(err, io.EOF) {
			return status, body, nil
		}
		if err != nil {
			return 0, "", err
		}
		length, err := quicvarint.Read(frames)
		if err != nil {
			return 0, "", err
		}
		content := make([]byte, length)
		if _, err := io.ReadFull(frames, content); err != nil {
			return 0, "", err
		}
		switch kind {
		case dataFrame:
			body += string(content)
		case headersFrame:
			first, err := qpack.NewDecoder().Decode(content)()
			if err != nil {
				return 0, "", err
			}
			if status, err = strconv.Atoi(first.Value); first.Name != ":status" || err != nil {
				return 0, "", fmt.Errorf("the answer begins with %s", first)
			}
		}
	}
}
