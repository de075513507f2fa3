"""Words as phonemes: by espeak-ng, by a lexicon, by letter-to-sound rules; in IPA or ARPAbet."""
