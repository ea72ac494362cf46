package openapi

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/munnerz/goautoneg"
)

// document is what is kept of an OpenAPI document: a tenth of its JSON.
type document struct {
	etag     string
	modified time.Time
	json     []byte // gzip
	// toProtobuf is upstream's conversion of the JSON.
	toProtobuf func([]byte) ([]byte, error)

	mu       sync.Mutex
	protobuf []byte // gzip; nil until somebody has asked for it
}

func newDocument(etag string, json []byte, toProtobuf func([]byte) ([]byte, error)) (*document, error) {
	compressed, err := compress(json)
	if err != nil {
		return nil, err
	}
	return &document{etag: etag, modified: time.Now(), json: compressed, toProtobuf: toProtobuf}, nil
}

// bytes returns the document in one of its encodings.
func (d *document) bytes(protobuf bool) ([]byte, error) {
	if !protobuf {
		return decompress(d.json)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.protobuf != nil {
		return decompress(d.protobuf)
	}
	json, err := decompress(d.json)
	if err != nil {
		return nil, err
	}
	encoded, err := d.toProtobuf(json)
	if err != nil {
		return nil, fmt.Errorf("encode OpenAPI document: %w", err)
	}
	if d.protobuf, err = compress(encoded); err != nil {
		return nil, err
	}
	return encoded, nil
}

// serve answers as upstream's handlers do (kube-openapi/pkg/handler and
// handler3), in the encoding that negotiate has chosen.
func (d *document) serve(w http.ResponseWriter, r *http.Request, protobuf bool) {
	body, err := d.bytes(protobuf)
	if err != nil {
		w.Header().Del("Cache-Control")
		w.Header().Del("Expires")
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Etag", strconv.Quote(d.etag))
	http.ServeContent(w, r, "", d.modified, bytes.NewReader(body))
}

// negotiate sets the headers for the first encoding the client accepts, and
// returns whether that is protobuf; or answers that there is none. The version
// is that of OpenAPI, v2 or v3.
func negotiate(w http.ResponseWriter, r *http.Request, version string) (protobuf, ok bool) {
	w.Header().Add("Vary", "Accept")
	accept := r.Header.Get("Accept")
	if accept == "" {
		accept = "*/*"
	}
	current := "com.github.proto-openapi.spec." + version + ".v1.0+protobuf"
	deprecated := "com.github.proto-openapi.spec." + version + "@v1.0+protobuf"
	for _, clause := range goautoneg.ParseAccept(accept) {
		if clause.Type != "application" && clause.Type != "*" {
			continue
		}
		switch clause.SubType {
		case "json", "*":
			w.Header().Set("Content-Type", "application/json")
			return false, true
		case current, deprecated:
			w.Header().Set("Content-Type", "application/"+current)
			return true, true
		}
	}
	w.WriteHeader(http.StatusNotAcceptable)
	return false, false
}

func compress(data []byte) ([]byte, error) {
	var buffer bytes.Buffer
	writer := gzip.NewWriter(&buffer)
	if _, err := writer.Write(data); err != nil {
		return nil, fmt.Errorf("compress OpenAPI document: %w", err)
	}
	if err := writer.Close(); err != nil {
		return nil, fmt.Errorf("compress OpenAPI document: %w", err)
	}
	return bytes.Clone(buffer.Bytes()), nil // without the buffer's spare room
}

func decompress(data []byte) ([]byte, error) {
	reader, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return nil, fmt.Errorf("decompress OpenAPI document: %w", err)
	}
	decompressed, err := io.ReadAll(reader)
	if err != nil {
		return nil, fmt.Errorf("decompress OpenAPI document: %w", err)
	}
	return decompressed, nil
}
