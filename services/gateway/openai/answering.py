"""One chat completion: asked, streamed, and given up when its reader goes."""

from collections.abc import AsyncGenerator

from libs.bus import NoAnswer, Permanent, Refusal, Retryable
from libs.contracts.inference import Complete, Completion, TextDelta
from services.gateway.clients import GatewayBus
from services.gateway.openai.wire import ChunkWriter, event
from services.gateway.problems import of_error, openai_error
from services.gateway.streamed import Streamed

_FRAMES = 64
_DONE = b"data: [DONE]\n\n"


class Answering:
    """Asks at once. A slow reader holds back the inference service; one that goes away ends the question."""

    def __init__(self, bus: GatewayBus, question: Complete) -> None:
        self._deltas = Streamed(bus, question, TextDelta, _FRAMES)
        self._first: TextDelta | None = None

    async def begin(self) -> None:
        """Wait for the first frame or the whole answer. Raises what the question raises, while a status can still say so."""
        try:
            self._first = await self._deltas.next()
        except BaseException:
            await self._deltas.close()
            raise

    async def whole(self) -> Completion:
        """The answer."""
        try:
            answer: Completion = await self._deltas.answer()
            return answer
        finally:
            await self._deltas.close()

    async def chunks(self, writer: ChunkWriter) -> AsyncGenerator[bytes, None]:
        """The answer as server-sent events; one that breaks off ends with an error and without `[DONE]`."""
        try:
            yield event(writer.first())
            delta = self._first
            while delta is not None:
                for chunk in writer.frame(delta):
                    yield event(chunk)
                delta = await self._deltas.next()
            for chunk in writer.last(await self._deltas.answer()):
                yield event(chunk)
            yield _DONE
        except (Refusal, NoAnswer, Retryable, Permanent) as error:
            yield event(openai_error(of_error(error)))
        finally:
            await self._deltas.close()
