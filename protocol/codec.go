package protocol

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"regexp"
	"strconv"

	"github.com/vmihailenco/msgpack/v5"
)

// Content types of a payload. A message without the header is msgpack.
const (
	ContentMsgpack = "application/msgpack"
	ContentJSON    = "application/json"
)

// Encode writes v as msgpack with the field names of the JSON form. It panics on a type that
// cannot be encoded, which is a defect. Of the tags it knows omitempty only: a time that may be
// absent has both, omitempty for msgpack and omitzero for JSON.
func Encode(v any) []byte {
	var buf bytes.Buffer
	enc := msgpack.GetEncoder()
	defer msgpack.PutEncoder(enc)
	enc.Reset(&buf)
	enc.SetCustomStructTag("json")
	enc.UseCompactInts(true)
	enc.SetSortMapKeys(true)
	if err := enc.Encode(v); err != nil {
		panic("protocol: encode: " + err.Error())
	}
	return buf.Bytes()
}

// EncodeAs writes v in the given content type; anything but [ContentJSON] is msgpack.
func EncodeAs(contentType string, v any) []byte {
	if contentType != ContentJSON {
		return Encode(v)
	}
	data, err := json.Marshal(v)
	if err != nil {
		panic("protocol: encode: " + err.Error())
	}
	return data
}

// Decode reads what a peer wrote, leniently: fields of a newer version are passed over.
func Decode(data []byte, v any) error {
	return decodeMsgpack(data, v, false)
}

// DecodeAs reads what a peer wrote in the given content type, leniently.
func DecodeAs(contentType string, data []byte, v any) error {
	if contentType == ContentJSON {
		return wrapDecode(json.Unmarshal(data, v))
	}
	return decodeMsgpack(data, v, false)
}

// DecodeStrict reads what a client sent: a field that is not known is refused by name, so that no
// option is silently ignored. contentType is the message's header, "" means msgpack. In msgpack an
// extension, which a time is, is refused too: no request or query has one.
func DecodeStrict(contentType string, data []byte, v any) error {
	switch contentType {
	case "", ContentMsgpack:
		return decodeMsgpack(data, v, true)
	case ContentJSON:
		dec := json.NewDecoder(bytes.NewReader(data))
		dec.DisallowUnknownFields()
		if err := dec.Decode(v); err != nil {
			return wrapDecode(err)
		}
		if _, err := dec.Token(); !errors.Is(err, io.EOF) {
			return Errorf(InvalidArgument, ReasonUndecodable, "something follows the JSON value")
		}
		return nil
	}
	return &Error{Code: InvalidArgument, Reason: ReasonUndecodable, Field: HeaderContentType,
		Message: "must be " + ContentMsgpack + " or " + ContentJSON}
}

func decodeMsgpack(data []byte, v any, strict bool) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = Errorf(InvalidArgument, ReasonUndecodable, "malformed msgpack")
		}
	}()
	if err := checkMsgpack(data, !strict); err != nil {
		return err
	}
	r := bytes.NewReader(data)
	dec := msgpack.GetDecoder()
	defer msgpack.PutDecoder(dec)
	dec.Reset(r)
	dec.SetCustomStructTag("json")
	dec.DisallowUnknownFields(strict)
	return wrapDecode(dec.Decode(v))
}

var unknownField = regexp.MustCompile(`unknown field ("(?:[^"\\]|\\.)*")`)

func wrapDecode(err error) error {
	if err == nil {
		return nil
	}
	if m := unknownField.FindStringSubmatch(err.Error()); m != nil {
		if name, err := strconv.Unquote(m[1]); err == nil {
			return &Error{Code: InvalidArgument, Reason: ReasonUnknownField, Field: name, Message: "is not a known field"}
		}
	}
	var typed *json.UnmarshalTypeError
	if errors.As(err, &typed) {
		return &Error{Code: InvalidArgument, Reason: ReasonUndecodable, Field: typed.Field,
			Message: "must be " + typed.Type.String() + ", got " + typed.Value}
	}
	return Errorf(InvalidArgument, ReasonUndecodable, "%.200s", err.Error())
}

// CheckVersion refuses an envelope of a version that this code does not know.
func CheckVersion(v int) error {
	if v < 1 || v > Version {
		return &Error{Code: FailedPrecondition, Reason: ReasonUnsupportedVersion, Field: "v",
			Message: "this side speaks versions 1 to 1"}
	}
	return nil
}
