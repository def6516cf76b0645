package contextwire

import "strconv"

// DataEncoder makes the data frames of one stream as [EncodeFrame] does, each in the
// room of the one before: what Encode returned is overwritten by its next call. The
// zero value is ready. It is not safe for concurrent use.
type DataEncoder struct {
	header Header
	seq    []string // the value of HeaderSeq
	body   []byte
}

// keptBody is the largest body whose room is kept for the next frame.
const keptBody = 256 << 10

// Encode makes the frame of one chunk.
func (d *DataEncoder) Encode(chunk map[string]any, seq uint64, ct ContentType) (Header, []byte, error) {
	if d.header == nil {
		d.seq = make([]string, 1)
		d.header = Header{HeaderFrame: {string(FrameData)}, HeaderSeq: d.seq}
	}
	body, err := Append(d.body[:0], ct, chunk)
	if err != nil {
		return nil, nil, err
	}
	if d.body = body; cap(body) > keptBody {
		d.body = nil
	}
	d.seq[0] = strconv.FormatUint(seq, 10)
	return d.header, body, nil
}
