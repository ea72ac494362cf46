package openapi

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"sync"
	"time"
)

// document is a compressed OpenAPI document, a tenth the size of its JSON.
type document struct {
	etag     string
	modified time.Time
	json     []byte // gzip
	// toProtobuf is upstream's conversion of the JSON.
	toProtobuf func([]byte) ([]byte, error)

	mu       sync.Mutex
	protobuf []byte // gzip; nil until the first request for it
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

func compress(data []byte) ([]byte, error) {
	var buffer bytes.Buffer
	writer := gzip.NewWriter(&buffer)
	if _, err := writer.Write(data); err != nil {
		return nil, fmt.Errorf("compress OpenAPI document: %w", err)
	}
	if err := writer.Close(); err != nil {
		return nil, fmt.Errorf("compress OpenAPI document: %w", err)
	}
	return bytes.Clone(buffer.Bytes()), nil // without the buffer's spare capacity
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
