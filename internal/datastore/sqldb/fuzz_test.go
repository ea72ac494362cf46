package sqldb

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/protobuf/proto"
)

// FuzzObjects reads arbitrary bytes as the objects of a snapshot. Every object that is
// read is in the file.
func FuzzObjects(f *testing.F) {
	kv := &mvccpb.KeyValue{Key: []byte("/registry/a"), Value: []byte("1"), ModRevision: 5, CreateRevision: 5, Lease: 7}
	text, err := proto.Marshal(kv)
	if err != nil {
		f.Fatal(err)
	}
	object := append(binary.AppendUvarint(nil, uint64(len(text))), text...)
	f.Add(append(bytes.Clone(object), object...))
	f.Add(object[:len(object)-1])
	f.Add(binary.AppendUvarint(nil, maxObject+1))
	f.Add(binary.AppendUvarint(nil, 1<<63))
	f.Add(bytes.Repeat([]byte{0xff}, 11))
	f.Add([]byte{0, 0})
	path := filepath.Join(f.TempDir(), "objects")
	f.Fuzz(func(t *testing.T, file []byte) {
		if err := os.WriteFile(path, file, 0o600); err != nil {
			t.Fatal(err)
		}
		read := 0
		err := readObjects(path, func(kv *mvccpb.KeyValue) error {
			if read++; !bytes.Contains(file, kv.Key) || !bytes.Contains(file, kv.Value) {
				t.Errorf("an object is read that is not in the file: %v", kv)
			}
			return nil
		})
		if read > len(file) || err == nil && read == 0 && len(file) > 0 {
			t.Errorf("%d objects are in %d bytes: %v", read, len(file), err)
		}
	})
}
