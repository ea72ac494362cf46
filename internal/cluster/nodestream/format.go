package nodestream

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// Decoder reads updates. It trusts nobody: it limits what it keeps in memory, and accepts
// only what Check of the updates does.
type Decoder[U any] struct {
	kind   Kind[U]
	reader *bufio.Reader
	// limit is maxLine, except in tests. begun says that an update was whole.
	limit int
	begun bool
}

// NewDecoder makes a decoder.
func (k Kind[U]) NewDecoder(r io.Reader) *Decoder[U] {
	return &Decoder[U]{kind: k, reader: bufio.NewReader(r), limit: maxLine}
}

// Next returns the next update. Its error is io.EOF after the last one.
func (d *Decoder[U]) Next() (U, error) {
	var update, none U
	line, err := d.line()
	if err != nil {
		return none, err
	}
	if err := json.Unmarshal(line, &update); err != nil {
		return none, fmt.Errorf("decode update: %w", err)
	}
	if err := d.kind.check(&update); err != nil {
		return none, fmt.Errorf("refuse update: %w", err)
	}
	if !d.begun && !d.kind.begins(&update) {
		return none, errors.New("refuse update: the first one is not whole")
	}
	d.begun = true
	return update, nil
}

// line returns a line. It keeps no buffer of the size of the longest line.
func (d *Decoder[U]) line() ([]byte, error) {
	var whole []byte
	for {
		part, err := d.reader.ReadSlice('\n')
		if len(whole)+len(part) > d.limit {
			return nil, fmt.Errorf("an update has more than %d bytes", d.limit)
		}
		whole = append(whole, part...)
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
		case err != nil && len(whole) > 0 && errors.Is(err, io.EOF):
			return nil, io.ErrUnexpectedEOF
		case err != nil:
			return nil, err
		default:
			return bytes.TrimSuffix(whole, []byte("\n")), nil
		}
	}
}

// Encode writes an update.
func Encode[U any](w io.Writer, update U) error {
	// The encoder ends it with a line feed, and puts none elsewhere.
	return json.NewEncoder(w).Encode(update)
}
