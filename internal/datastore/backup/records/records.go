// Package records is the content of a backup, before it is compressed and encrypted: changes of keys, files of the server, and
// what time it was at which revision. Package backup writes records, and package rebuild reads them.
package records

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/protobuf/proto"
)

// A record is its length as a varint, one byte with its type, and its body. The length is that of type and body.
const (
	typeEvent  = 'E' // an Event of etcd's API (api/mvccpb/kv.proto)
	typeMoment = 'M' // a Moment in JSON
	typeFile   = 'F' // a File in JSON
)

// Moment says that the revision was the newest one at a time. The changes before it in the backup happened until then.
type Moment struct {
	Time     time.Time `json:"time"`
	Revision int64     `json:"revision"`
}

// File is a file of the server that is not in the datastore.
type File struct {
	// Name is what package backup calls the file, such as tls/server-ca.key.
	Name string      `json:"name"`
	Mode os.FileMode `json:"mode,omitempty"`
	// Gone is true if there is no such file any more. Then it has no content.
	Gone    bool   `json:"gone,omitempty"`
	Content []byte `json:"content,omitempty"`
}

// AppendEvent adds a change to records.
func AppendEvent(to []byte, event *mvccpb.Event) ([]byte, error) {
	size := proto.Size(event)
	to = append(binary.AppendUvarint(to, uint64(size)+1), typeEvent)
	to, err := proto.MarshalOptions{UseCachedSize: true}.MarshalAppend(to, event)
	if err != nil {
		return nil, fmt.Errorf("encode change of %s: %w", event.Kv.Key, err)
	}
	return to, nil
}

// AppendMoment adds a moment to records.
func AppendMoment(to []byte, moment Moment) ([]byte, error) {
	return appendJSON(to, typeMoment, moment)
}

// AppendFile adds a file to records.
func AppendFile(to []byte, file File) ([]byte, error) { return appendJSON(to, typeFile, file) }

func appendJSON(to []byte, kind byte, value any) ([]byte, error) {
	text, err := json.Marshal(value)
	if err != nil {
		return nil, fmt.Errorf("encode record: %w", err)
	}
	return append(append(binary.AppendUvarint(to, uint64(len(text))+1), kind), text...), nil
}

// Visitor is told of records. A function that is nil is not called.
type Visitor struct {
	Event  func(*mvccpb.Event) error
	Moment func(Moment) error
	File   func(File) error
}

var errCutOff = errors.New("the content of the backup is cut off")

// Read tells the visitor of each record. It ends with the visitor's first error.
func Read(content []byte, v Visitor) error {
	for len(content) > 0 {
		length, n := binary.Uvarint(content)
		if n <= 0 || length == 0 || length > uint64(len(content)-n) {
			return errCutOff
		}
		record := content[n:][:length]
		content = content[n:][length:]
		if err := v.visit(record[0], record[1:]); err != nil {
			return err
		}
	}
	return nil
}

func (v Visitor) visit(kind byte, body []byte) error {
	switch {
	case kind == typeEvent && v.Event != nil:
		var event mvccpb.Event
		if err := proto.Unmarshal(body, &event); err != nil {
			return fmt.Errorf("read change in the backup: %w", err)
		}
		if event.Kv == nil {
			return errors.New("the backup has a change of no key")
		}
		return v.Event(&event)
	case kind == typeMoment && v.Moment != nil:
		return visitJSON(body, v.Moment)
	case kind == typeFile && v.File != nil:
		return visitJSON(body, v.File)
	}
	return nil // the visitor does not want it, or a later kedge wrote it
}

func visitJSON[T any](body []byte, do func(T) error) error {
	var value T
	if err := json.Unmarshal(body, &value); err != nil {
		return fmt.Errorf("read record of the backup: %w", err)
	}
	return do(value)
}
