package rebuild

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/protobuf/proto"

	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/datastore/backup/chain"
	"github.com/kedge-dev/kedge/internal/datastore/backup/records"
)

// State is what the datastore and the server had at a point. The values are in a file, so that a large state fits in a small machine.
type State struct {
	Point
	// Files are the files of the server, by their names.
	Files map[string]records.File

	values *os.File
	writer *bufio.Writer
	size   int64
	keys   map[string]value
}

// value is where the file of values has the present value of a key.
type value struct {
	revision, offset int64
	length           int
}

// Progress is told how many bytes of how many have been read.
type Progress func(done, all int64)

// Load reads the state of a point into memory and into a file in the folder. The caller closes the state.
func (l *Log) Load(ctx context.Context, p *Point, folder string, progress Progress) (_ *State, err error) {
	values, err := os.CreateTemp(folder, "state-")
	if err != nil {
		return nil, fmt.Errorf("make file for the state: %w", datadir.Explain(err))
	}
	s := &State{Point: *p, Files: map[string]records.File{}, values: values, writer: bufio.NewWriter(values), keys: map[string]value{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	if err := os.Remove(values.Name()); err != nil { // nobody else needs its name
		return nil, fmt.Errorf("make file for the state: %w", err)
	}
	var all, done int64
	for _, part := range p.Base.Parts {
		all += int64(part.Size)
	}
	for _, entry := range p.Changes {
		all += int64(entry.Size)
	}
	advance := func(size int) {
		if done += int64(size); progress != nil {
			progress(done, all)
		}
	}
	for _, part := range p.Base.Parts {
		if err := s.addPart(ctx, l, part); err != nil {
			return nil, err
		}
		advance(part.Size)
	}
	for _, entry := range p.Changes {
		content, err := l.changes(ctx, entry)
		if err != nil {
			return nil, err
		}
		if err := s.add(content); err != nil {
			return nil, fmt.Errorf("entry %d of the backup: %w", entry.Number, err)
		}
		advance(entry.Size)
	}
	return s, s.flush()
}

func (s *State) addPart(ctx context.Context, l *Log, part chain.Part) error {
	sealed, err := l.Chain.ReadPart(ctx, part)
	if err != nil {
		return err
	}
	content, err := l.Open(sealed)
	if err == nil {
		err = s.add(content)
	}
	if err != nil {
		return fmt.Errorf("part %s of a base of the backup: %w", part.Name, err)
	}
	return nil
}

// add applies records.
func (s *State) add(content []byte) error {
	return records.Read(content, records.Visitor{
		Event: s.event,
		File: func(file records.File) error {
			if file.Gone {
				delete(s.Files, file.Name)
			} else {
				s.Files[file.Name] = file
			}
			return nil
		},
	})
}

// event applies a change, unless the state has a later one, or the change is after the point.
func (s *State) event(event *mvccpb.Event) error {
	kv := event.Kv
	if kv.ModRevision > s.Revision || kv.ModRevision <= s.keys[string(kv.Key)].revision {
		return nil
	}
	if event.Type == mvccpb.Event_DELETE {
		// The base may have a value that is older than this deletion.
		s.keys[string(kv.Key)] = value{revision: kv.ModRevision, offset: -1}
		return nil
	}
	text, err := proto.Marshal(kv)
	if err != nil {
		return fmt.Errorf("encode %s: %w", kv.Key, err)
	}
	if _, err := s.writer.Write(text); err != nil {
		return fmt.Errorf("keep state: %w", datadir.Explain(err))
	}
	s.keys[string(kv.Key)] = value{kv.ModRevision, s.size, len(text)}
	s.size += int64(len(text))
	return nil
}

func (s *State) flush() error {
	if err := s.writer.Flush(); err != nil {
		return fmt.Errorf("keep state: %w", datadir.Explain(err))
	}
	return nil
}

// Close gives up the file.
func (s *State) Close() error { return s.values.Close() }

// Keys returns how many keys there are.
func (s *State) Keys() (n int) {
	for _, v := range s.keys {
		if v.offset >= 0 {
			n++
		}
	}
	return n
}

// Export implements datastore.Export: it calls each with the present keys, in the order of their revisions.
func (s *State) Export(ctx context.Context, each func(*mvccpb.Event) error) (revision, compacted int64, err error) {
	var present []value
	for _, v := range s.keys {
		if v.offset >= 0 {
			present = append(present, v)
		}
	}
	slices.SortFunc(present, func(a, b value) int { return cmp.Compare(a.revision, b.revision) })
	for _, v := range present {
		if err := ctx.Err(); err != nil {
			return 0, 0, err
		}
		text := make([]byte, v.length)
		if _, err := s.values.ReadAt(text, v.offset); err != nil && !errors.Is(err, io.EOF) {
			return 0, 0, fmt.Errorf("read state: %w", datadir.Explain(err))
		}
		var kv mvccpb.KeyValue
		if err := proto.Unmarshal(text, &kv); err != nil {
			return 0, 0, fmt.Errorf("read state: %w", err)
		}
		if err := each(&mvccpb.Event{Kv: &kv}); err != nil {
			return 0, 0, err
		}
	}
	return s.Revision, s.Revision, nil
}
