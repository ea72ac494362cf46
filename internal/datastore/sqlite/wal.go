package sqlite

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
)

// The format of a write-ahead log: https://sqlite.org/fileformat2.html#walformat.
const (
	walHeader      = 32
	walFrameHeader = 24
	walMagic       = 0x377f0682 // the last bit is set if the sums are of big-endian words
	walMaxPage     = 65536
)

// checkWAL returns an error if a write-ahead log that a crash left has lost
// transactions that had reached the disk. SQLite does not report that: it takes the
// log up to the first frame with a wrong sum, as after a power cut in the middle of a
// write. But a power cut can spoil only the last transaction, because the next one
// begins only when that one is on the disk. So a log is damaged if it has two or more
// transactions from the wrong frame on. It is also damaged if it has frames after a
// wrong header.
func checkWAL(file string) error {
	log, err := os.Open(file + "-wal")
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open write-ahead log: %w", err)
	}
	defer log.Close()
	lost, err := lostTransactions(bufio.NewReaderSize(log, 1<<20))
	if err != nil {
		return fmt.Errorf("read write-ahead log: %w", err)
	}
	if lost {
		return damagedWAL(file)
	}
	return nil
}

// lostTransactions tells whether a log has transactions after its first wrong frame that
// cannot be part of the same write as that frame.
func lostTransactions(log io.Reader) (lost bool, err error) {
	header := make([]byte, walHeader)
	if _, err := io.ReadFull(log, header); err != nil {
		return false, ignoreEnd(err) // the log was always empty
	}
	big := binary.BigEndian
	magic, pageSize := big.Uint32(header), big.Uint32(header[8:])
	var words binary.ByteOrder = binary.LittleEndian
	if magic&1 == 1 {
		words = big
	}
	sum := walSum{}
	sum.add(words, header[:24])
	wrong := magic&^1 != walMagic || pageSize < 512 || pageSize > walMaxPage || !sum.is(header[24:])
	if wrong {
		n, err := io.CopyN(io.Discard, log, walFrameHeader+512)
		return n == walFrameHeader+512, ignoreEnd(err)
	}
	frame := make([]byte, walFrameHeader+pageSize)
	commits := 0
	for {
		if _, err := io.ReadFull(log, frame); err != nil {
			return false, ignoreEnd(err)
		}
		if string(frame[8:16]) != string(header[16:24]) {
			// This frame is from before the log was restarted: everything up to it is in
			// the database. A wrong frame may look like this too.
			wrong = true
			continue
		}
		if !wrong {
			sum.add(words, frame[:8])
			sum.add(words, frame[walFrameHeader:])
			wrong = !sum.is(frame[16:24])
		}
		if wrong && big.Uint32(frame[4:]) != 0 {
			if commits++; commits > 1 {
				return true, nil
			}
		}
	}
}

// walSum is the running sum of a log.
type walSum [2]uint32

func (s *walSum) add(words binary.ByteOrder, data []byte) {
	for ; len(data) >= 8; data = data[8:] {
		s[0] += words.Uint32(data) + s[1]
		s[1] += words.Uint32(data[4:]) + s[0]
	}
}

// is tells whether the sum is the one that the log contains.
func (s *walSum) is(written []byte) bool {
	return binary.BigEndian.Uint32(written) == s[0] && binary.BigEndian.Uint32(written[4:]) == s[1]
}

func ignoreEnd(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return nil
	}
	return err
}
